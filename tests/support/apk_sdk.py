"""An Android SDK of packages that anyone can fetch, a project for it, and small stand-ins.

aapt2, R8, apksigner and the Kotlin compiler are the real ones, and the platform is Android's own
code (android-all). Only ExecuTorch's library is a stand-in, with two classes and empty native
libraries: an APK is built of it, and never run.
"""

from __future__ import annotations

import os
import pwd
import shutil
import struct
import subprocess
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from etdeploy.apps.android.app import AndroidApp
from etdeploy.apps.android.tools import Library
from etdeploy.backends.values import Workstation
from etdeploy.core.files.basic import new_folder
from etdeploy.core.files.locks import exclusive
from tests.support.debian import CACHE_VARIABLE

API = 34
_KOTLIN = "2.0.21"
_ANDROID_ALL = "14-robolectric-10818077"
# By artifact: what comes along is needed of the Kotlin compiler alone.
_PACKAGES = {
    "org.apktool:apktool-lib": "3.0.3",
    "com.android.tools:r8": "8.13.19",
    "org.robolectric:android-all": _ANDROID_ALL,
    "com.facebook.soloader:nativeloader": "0.10.5",
    "com.facebook.fbjni:fbjni": "0.7.0",
    "org.jetbrains.kotlin:kotlin-compiler-embeddable": _KOTLIN,
}
_SIGNER = Path("/usr/share/java/apksigner.jar")
_PROGRAMS = ("mvn", "javac")
# Java's own packages, which an SDK's android.jar has and android-all has not.
_MODULES = ("java.base", "java.logging", "java.sql", "java.xml")
# Java 11, as ct.sym abbreviates it.
_RELEASE = "B"


class SdkUnavailable(Exception):  # noqa: N818 - a reason to skip
    """Why this machine cannot have an SDK for tests."""


def user_home() -> Path:
    """The home folder that Java programs take, whatever HOME says."""
    return Path(pwd.getpwuid(os.getuid()).pw_dir)


def station(sdk: Path | None = None, **environ: str) -> Workstation:
    """This machine with an SDK, whose home is that of Maven."""
    named = {"ANDROID_HOME": str(sdk)} if sdk else {}
    return Workstation({"PATH": os.environ["PATH"], **named, **environ}, user_home())


def kept_sdk() -> Path:
    """The SDK; made on first use (half a minute, and 0.3 GB fetched) and kept.

    Raises:
        SdkUnavailable: Something that it takes is missing here.
    """
    absent = [name for name in _PROGRAMS if shutil.which(name) is None]
    if absent or not _SIGNER.is_file():
        raise SdkUnavailable(f"missing: {', '.join(absent) or _SIGNER}")
    named = os.environ.get(CACHE_VARIABLE)
    root = (Path(named) if named else Path(tempfile.gettempdir())) / f"etdeploy-sdk-{os.getuid()}"
    with exclusive(root.with_suffix(".lock"), "the SDK for tests"):
        if not root.is_dir():
            _fetch()
            with new_folder(root) as folder:
                _lay_out(folder)
    return root


def _fetch() -> None:
    """Has Maven fetch the packages into the user's folder."""
    entries = "".join(map(_dependency, _PACKAGES))
    pom = (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>x</groupId><artifactId>x</artifactId><version>1</version>"
        f"<dependencies>{entries}</dependencies></project>"
    )
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "pom.xml").write_text(pom)
        command = ["mvn", "-q", "-B", "dependency:resolve"]
        made = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if made.returncode:
        raise SdkUnavailable(f"Maven fetches nothing: {made.stdout[-500:]}")


def _dependency(coordinates: str) -> str:
    group, name = coordinates.split(":")
    alone = (
        "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion>"
        "</exclusions>"
    )
    kind = "<type>aar</type>" if name == "fbjni" else ""
    return (
        f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId>{kind}"
        f"<version>{_PACKAGES[coordinates]}</version>{'' if 'kotlin' in name else alone}"
        "</dependency>"
    )


def _jar(coordinates: str) -> Path:
    group, name = coordinates.split(":")
    version = _PACKAGES[coordinates]
    folder = user_home().joinpath(".m2/repository", *group.split("."), name, version)
    return folder / f"{name}-{version}.jar"


def _lay_out(folder: Path) -> None:
    """The SDK's folders, as sdkmanager makes them."""
    tools = folder / "build-tools/36.0.0"
    (tools / "lib").mkdir(parents=True)
    with zipfile.ZipFile(_jar("org.apktool:apktool-lib")) as archive:
        name = next(n for n in archive.namelist() if n.endswith("linux/aapt2"))
        (tools / "aapt2").write_bytes(archive.read(name))
    (tools / "aapt2").chmod(0o755)
    shutil.copy(_jar("com.android.tools:r8"), tools / "lib/d8.jar")
    shutil.copy(_SIGNER, tools / "lib/apksigner.jar")
    platform = folder / f"platforms/android-{API}"
    platform.mkdir(parents=True)
    shutil.copy(_jar("org.robolectric:android-all"), platform / "android.jar")
    _add_java(platform / "android.jar")


def _add_java(jar: Path) -> None:
    """Adds Java's classes without their code, as javac --release knows them.

    Source: JEP 247. Each folder of ct.sym is named after the releases that have its classes.
    """
    symbols = Path(str(shutil.which("javac"))).resolve().parent.parent / "lib/ct.sym"
    with (
        zipfile.ZipFile(jar, "a", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        zipfile.ZipFile(symbols) as known,
    ):
        present = set(archive.namelist())
        for name in known.namelist():
            releases, _, rest = name.partition("/")
            module, _, path = rest.partition("/")
            target = path.replace(".sig", ".class")
            wanted = path.endswith(".sig") and _RELEASE in releases and module in _MODULES
            if wanted and target not in present and "-info" not in target:
                archive.writestr(target, known.read(name))


def elf(alignment: int = 16384, size_bytes: int = 256) -> bytes:
    """An ELF library for arm64 with one segment that is loaded."""
    head = b"\x7fELF\x02\x01\x01" + bytes(9)
    head += struct.pack("<HHLQQQLHHHHHH", 3, 183, 1, 0, 64, 0, 0, 64, 56, 1, 64, 0, 0)
    segment = struct.pack("<LLQQQQQQ", 1, 5, 0, 0, 0, size_bytes, size_bytes, alignment)
    return (head + segment).ljust(size_bytes, b"\0")


def write_aar(
    path: Path,
    classes: bytes,
    native: Mapping[str, bytes] | None = None,
    rules: str = "",
    others: Sequence[str] = (),
) -> Path:
    """An AAR; `native` by paths like `arm64-v8a/libexecutorch.so`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("AndroidManifest.xml", '<manifest package="org.pytorch.executorch"/>')
        archive.writestr("classes.jar", classes)
        if rules:
            archive.writestr("proguard.txt", rules)
        for name, content in (native or {}).items():
            archive.writestr(f"jni/{name}", content)
        for name in others:
            archive.writestr(name, b"x")
    return path


def stand_in_library(folder: Path) -> Library:
    """ExecuTorch's library, with the class Module and an empty libexecutorch.so."""
    source = folder / "org/pytorch/executorch/Module.java"
    source.parent.mkdir(parents=True)
    source.write_text(
        "package org.pytorch.executorch;\n"
        "public class Module {\n"
        '  static { System.loadLibrary("executorch"); }\n'
        "  public static native Module load(String path);\n"
        "  public native float[] forward(float[] input);\n"
        "  public void neverCalled() { throw new IllegalStateException(); }\n"
        "}\n"
    )
    subprocess.run(["javac", "--release", "11", "-d", folder / "classes", source], check=True)
    jar = folder / "classes.jar"
    with zipfile.ZipFile(jar, "w") as archive:
        name = "org/pytorch/executorch/Module.class"
        archive.write(folder / "classes" / name, name)
    native = {f"{abi}/libexecutorch.so": elf() for abi in ("arm64-v8a", "x86_64")}
    path = write_aar(folder / "executorch-android-1.5.1.aar", jar.read_bytes(), native)
    return Library("executorch-android", path)


APP = AndroidApp(
    id="org.example.convnet", name="Convnet", compile_sdk=API, target_sdk=API, version_name="1.2"
)

_MANIFEST = """\
<?xml version="1.0" encoding="utf-8"?>
<manifest xmlns:android="http://schemas.android.com/apk/res/android">
    <application android:label="@string/app_name">
        <activity android:name=".MainActivity" android:exported="true">
            <intent-filter>
                <action android:name="android.intent.action.MAIN" />
                <category android:name="android.intent.category.LAUNCHER" />
            </intent-filter>
        </activity>
    </application>
</manifest>
"""
_STRINGS = '<resources><string name="app_name">Convnet</string></resources>\n'
_ACTIVITY = """\
package org.example.convnet

import android.app.Activity
import android.os.Bundle
import android.widget.TextView
import org.pytorch.executorch.Module

class MainActivity : Activity() {
    override fun onCreate(state: Bundle?) {
        super.onCreate(state)
        val text = TextView(this)
        text.text = getString(R.string.app_name) + listOf(1, 2).joinToString { "$it ms" }
        text.setOnClickListener {
            text.text = Module.load("program.pte").forward(floatArrayOf(1f)).contentToString()
        }
        setContentView(text)
    }
}
"""


def write_project(folder: Path, program: bytes = b"\x01" * 5000) -> Path:
    """A project of the fixed layout, with one Activity."""
    files: dict[str, str | bytes] = {
        "app/src/main/AndroidManifest.xml": _MANIFEST,
        "app/src/main/res/values/strings.xml": _STRINGS,
        "app/src/main/kotlin/org/example/convnet/MainActivity.kt": _ACTIVITY,
        "app/src/main/assets/model/model.json": '{"name": "convnet"}\n',
        "app/src/main/assets/model/program.pte": program,
        "app/proguard-rules.pro": "",
    }
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder
