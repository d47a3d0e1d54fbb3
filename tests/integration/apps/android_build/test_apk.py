"""A project becomes an APK: with the real aapt2, R8, apksigner, Kotlin and Java compilers."""

from __future__ import annotations

import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from etdeploy.apps.android.apk import build_apk
from etdeploy.apps.android.app import ASSETS, MANIFEST, NATIVE
from etdeploy.apps.android.archive import apk_problems, placed_files
from etdeploy.apps.android.commands import debug_keystore
from etdeploy.apps.android.tools import Tools, find_tools, require_tools
from etdeploy.apps.platform import BuiltApp
from etdeploy.backends.values import Workstation
from etdeploy.core.errors import BuildError
from tests.support.apk_sdk import (
    API,
    APP,
    SdkUnavailable,
    elf,
    kept_sdk,
    stand_in_library,
    station,
    write_project,
)

pytestmark = pytest.mark.integration

CODE = "app/src/main/kotlin/org/example/convnet/MainActivity.kt"
EVERYTHING = [
    "compiling the resources",
    "unpacking the libraries",
    "compiling the code",
    "shrinking the code",
    "packing and signing the app",
]


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Tools:
    try:
        sdk = kept_sdk()
    except SdkUnavailable as why:
        pytest.skip(str(why))
    library = stand_in_library(tmp_path_factory.mktemp("library"))
    wanted = ["org.pytorch:executorch-android:1.5.1"]
    return require_tools(find_tools(station(sdk), wanted, compile_sdk=API, aar=library.path))


class Workshop:
    """A project that is built again and again."""

    def __init__(self, folder: Path, tools: Tools) -> None:
        self.project = write_project(folder / "project")
        self.folder = folder
        self.tools = tools
        self.app = APP
        self.here = Workstation({}, folder / "home")
        self.told: list[str] = []

    def build(self) -> BuiltApp:
        self.told = []
        return build_apk(
            self.project, self.folder / "work", self.tools, self.app, self.tell,
            station=self.here, log=self.folder / "log",
        )  # fmt: skip

    def tell(self, text: str, fraction: float | None = None) -> None:  # noqa: ARG002
        self.told.append(text)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory, tools: Tools) -> tuple[Workshop, BuiltApp]:
    """What is built once; tests that change it take a copy."""
    shop = Workshop(tmp_path_factory.mktemp("shop"), tools)
    apk = shop.build()
    assert shop.told == EVERYTHING
    return shop, apk


@pytest.fixture
def shop(
    first: tuple[Workshop, BuiltApp], tmp_path: Path, tools: Tools
) -> tuple[Workshop, BuiltApp]:
    original, apk = first
    shutil.copytree(original.folder, tmp_path / "copy", copy_function=shutil.copy2)
    copy = Workshop(tmp_path / "copy", tools)
    shutil.copytree(original.project, copy.project, dirs_exist_ok=True)
    return copy, apk


def test_the_apk_can_be_installed(first: tuple[Workshop, BuiltApp]) -> None:
    shop, apk = first
    path = Path(apk.archive)
    assert list(apk_problems(path)) == []
    jar, signer = shop.tools.sdk.apksigner, "com.android.apksigner.ApkSignerTool"
    command = [str(shop.tools.jdk.program("java")), "-cp", str(jar), signer, "verify", "--verbose",
               "--print-certs", str(path)]  # fmt: skip
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for scheme in ("v1 scheme (JAR signing)", "v2 scheme (APK Signature Scheme v2)",
                   "v3 scheme (APK Signature Scheme v3)"):  # fmt: skip
        assert f"Verified using {scheme}: true" in told
    assert "CN=Android Debug" in told


def test_android_finds_its_activity_versions_and_levels(first: tuple[Workshop, BuiltApp]) -> None:
    shop, apk = first
    command = [str(shop.tools.sdk.aapt2), "dump", "badging", apk.archive]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "package: name='org.example.convnet' versionCode='1' versionName='1.2'" in told
    assert "launchable-activity: name='org.example.convnet.MainActivity'" in told
    assert "application-label:'Convnet'" in told
    assert "targetSdkVersion:'34'" in told
    assert "application-debuggable" in told
    assert "native-code: 'arm64-v8a'" in told


def test_model_and_libraries_are_mapped_from_the_apk(first: tuple[Workshop, BuiltApp]) -> None:
    files = {file.name: file for file in placed_files(Path(first[1].archive))}
    for name in ("lib/arm64-v8a/libexecutorch.so", "assets/model/program.pte"):
        assert files[name].stored
        assert files[name].offset % 16384 == 0
    assert {name for name in files if name.startswith("lib/x86")} == set()
    assert {"lib/arm64-v8a/libfbjni.so", "lib/arm64-v8a/libc++_shared.so"} <= set(files)


def test_code_that_nobody_calls_is_gone_and_the_rest_has_its_names(
    first: tuple[Workshop, BuiltApp],
) -> None:
    with zipfile.ZipFile(first[1].archive) as archive:
        dex = archive.read("classes.dex")
    assert b"Lorg/example/convnet/MainActivity;" in dex
    assert b"Lorg/pytorch/executorch/Module;" in dex
    assert b"forward" in dex
    assert b"neverCalled" not in dex


def test_debians_zipalign_agrees(first: tuple[Workshop, BuiltApp]) -> None:
    zipalign = shutil.which("zipalign")
    if zipalign is None:
        pytest.skip("there is no zipalign")
    subprocess.run([zipalign, "-c", "-p", "4", first[1].archive], check=True)


def test_nothing_is_made_again_when_nothing_changed(shop: tuple[Workshop, BuiltApp]) -> None:
    again, apk = shop
    assert again.build().sha256 == apk.sha256
    assert again.told == []


def test_another_model_is_packed_and_nothing_is_compiled(shop: tuple[Workshop, BuiltApp]) -> None:
    again, apk = shop
    (again.project / ASSETS / "model/program.pte").write_bytes(b"\2" * 7000)
    other = again.build()
    assert again.told == ["packing and signing the app"]
    assert other.sha256 != apk.sha256
    with zipfile.ZipFile(other.archive) as archive:
        assert archive.read("assets/model/program.pte") == b"\2" * 7000


def test_the_key_is_made_once_and_never_again(shop: tuple[Workshop, BuiltApp]) -> None:
    again, _ = shop
    keystore = debug_keystore(again.here)
    before = keystore.read_bytes()
    (again.project / ASSETS / "model/model.json").write_text("{}")
    again.build()
    assert keystore.read_bytes() == before
    assert [path.name for path in keystore.parent.iterdir()] == ["debug.keystore"]


def test_a_keystore_with_another_password_is_told(shop: tuple[Workshop, BuiltApp]) -> None:
    again, _ = shop
    keystore = debug_keystore(again.here)
    keystore.unlink()
    command = [
        str(again.tools.jdk.program("keytool")), "-genkeypair", "-keystore", str(keystore),
        "-storepass", "secret", "-alias", "mine", "-keyalg", "EC", "-dname", "CN=me",
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)
    with pytest.raises(BuildError, match="is not a debug key") as caught:
        again.build()
    assert str(keystore) in caught.value.message
    assert keystore.is_file()


def test_a_mistake_in_the_code_is_told_with_its_line(shop: tuple[Workshop, BuiltApp]) -> None:
    again, apk = shop
    code = again.project / CODE
    text = code.read_text()
    code.write_text(text.replace("TextView(this)", "TextVew(this)"))
    with pytest.raises(BuildError, match="Kotlin") as caught:
        again.build()
    assert "MainActivity.kt:11:20: error: unresolved reference" in caught.value.message
    assert caught.value.log is not None
    assert "TextVew" in caught.value.log.read_text()
    code.write_text(text)
    assert again.build().sha256 == apk.sha256
    assert again.told == []


@pytest.mark.nightly
def test_java_beside_kotlin_is_compiled(shop: tuple[Workshop, BuiltApp]) -> None:
    again, _ = shop
    folder = again.project / "app/src/main/java/org/example/convnet"
    folder.mkdir(parents=True)
    (folder / "Words.java").write_text(
        "package org.example.convnet;\n"
        'class Words { static String of(MainActivity a) { return "said by Java"; } }\n'
    )
    code = again.project / CODE
    code.write_text(code.read_text().replace("getString(R.string.app_name)", "Words.of(this)"))
    with zipfile.ZipFile(again.build().archive) as archive:
        assert b"said by Java" in archive.read("classes.dex")


@pytest.mark.nightly
def test_libraries_that_are_opened_by_path_are_extracted_by_the_installer(
    shop: tuple[Workshop, BuiltApp],
) -> None:
    again, _ = shop
    again.app = APP.model_copy(update={"extracted": True})
    library = again.project / NATIVE / "arm64-v8a/libvendor.so"
    library.parent.mkdir(parents=True)
    library.write_bytes(elf())
    apk = again.build()
    files = {file.name: file for file in placed_files(Path(apk.archive))}
    assert not files["lib/arm64-v8a/libvendor.so"].stored
    command = [str(again.tools.sdk.aapt2), "dump", "xmltree", "--file", "AndroidManifest.xml"]
    command.append(apk.archive)
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "extractNativeLibs(0x010104ea)=true" in told


def test_the_projects_own_library_replaces_the_published_one(
    shop: tuple[Workshop, BuiltApp],
) -> None:
    again, _ = shop
    library = again.project / NATIVE / "arm64-v8a/libexecutorch.so"
    library.parent.mkdir(parents=True)
    library.write_bytes(elf(size_bytes=999))
    with zipfile.ZipFile(again.build().archive) as archive:
        assert archive.read("lib/arm64-v8a/libexecutorch.so") == elf(size_bytes=999)


def test_a_folder_that_is_no_project_is_told(tmp_path: Path, tools: Tools) -> None:
    shop = Workshop(tmp_path, tools)
    (shop.project / MANIFEST).unlink()
    with pytest.raises(BuildError, match="manifest") as caught:
        shop.build()
    assert caught.value.place == str(shop.project / MANIFEST)
