"""Runs what builds an app without Gradle: aapt2, Kotlin's and Java's compilers, R8, apksigner."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from etdeploy.apps.android.app import AndroidApp
from etdeploy.apps.android.sdk import Jdk, Sdk
from etdeploy.apps.android.tools import Kotlin
from etdeploy.backends.values import Workstation
from etdeploy.core.diagnostics import Diagnosis, FailurePattern, FailureTable
from etdeploy.core.errors import BuildError
from etdeploy.core.files.basic import write_atomic
from etdeploy.core.processes import process

_COMPLAINT = re.compile(r"\berror\b|Exception: |^Missing class ", re.IGNORECASE)
_QUOTED_LINES = 6
# These tools run for seconds: Java's optimizing compiler would take longer than it saves, and a
# parallel garbage collector would compete with their threads.
JAVA_OPTIONS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")


# Messages of apksigner, R8 and the Java that runs them.
SDK_TOOL_FAILURES = FailureTable(
    "Building an Android app with the SDK's tools",
    BuildError.exit_code,
    (
        FailurePattern(
            r"password was incorrect|androiddebugkey",
            "{keystore} is not a debug key: it has another password, or a key of another name",
            "Move it away, and etdeploy makes a new one; or export ANDROID_USER_HOME=/a/folder",
        ),
        FailurePattern(
            r"Missing class (?P<name>[\w.$]+)",
            "the app's code or a library uses the class {name}, which no library has",
            "Put the jar that has it into app/libs, or, if it is never called, add to "
            "app/proguard-rules.pro:\n"
            "-dontwarn {name}",
        ),
        FailurePattern(
            r"UnsupportedClassVersionError|class file has wrong version",
            "the JDK is too old for a tool or a library of the app",
            "Install a newer JDK, and\nexport JAVA_HOME=/path/to/jdk",
        ),
    ),
)


def run_tool(what: str, argv: Sequence[object], log: Path | None, **values: str) -> str:
    """Runs a tool to its end and returns what it printed; `values` are for the failure table."""
    words = tuple(map(str, argv))
    try:
        outcome = process.run(process.Request(words, log=log))
    except OSError as error:
        raise BuildError(
            f"{what} failed: {words[0]} cannot be started: {error.strerror}", log=log
        ) from error
    if not outcome.ok:
        ended = outcome.signal_name or f"exit code {outcome.exit_code}"
        text = f"{outcome.stderr}\n{outcome.stdout}"
        found = SDK_TOOL_FAILURES.diagnose(text, **values) or Diagnosis("", "")
        cause = f": {found.cause}" if found.cause else ""
        raise BuildError(
            f"{what} failed ({Path(words[0]).name}, {ended}){cause}{complaints(text)}",
            remedy=found.remedy or None,
            log=log,
        )
    return outcome.stdout


def complaints(text: str) -> str:
    """The lines with the first errors of a tool; its last line if there are none."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    chosen = [line for line in lines if _COMPLAINT.search(line)][:_QUOTED_LINES] or lines[-1:]
    return "".join(f"\n{line}" for line in chosen)


LINKED = "linked.apk"
CODE_OF_RESOURCES = "java"
KEEP_RULES = "keep.pro"
# The bytecode of ExecuTorch's own library.
_BYTECODE = "11"
_R8 = "com.android.tools.r8.R8"
_KOTLINC = "org.jetbrains.kotlin.cli.jvm.K2JVMCompiler"
# Unused code goes and the rest stays as it was written, so that what a crash says can be read. What
# Gradle's plugin keeps in every app, and what ExecuTorch's native code calls by name; releases
# before 1.3 bring no rules. Of libraries' annotations nothing is needed at run time.
_RULES = """\
-keepattributes AnnotationDefault,RuntimeVisibleAnnotations,Signature,InnerClasses,EnclosingMethod
-keepattributes SourceFile,LineNumberTable
-dontobfuscate
-dontoptimize
-keepclasseswithmembernames,includedescriptorclasses class * { native <methods>; }
-keepclassmembers enum * {
    public static **[] values();
    public static ** valueOf(java.lang.String);
}
-keepclasseswithmembers class org.pytorch.executorch.** { native <methods>; }
-keep class com.facebook.jni.** { *; }
-keep class org.pytorch.executorch.*Exception* { *; }
-keep class org.pytorch.executorch.EValue { *; }
-keep class org.pytorch.executorch.Tensor { *; }
-keep class org.pytorch.executorch.Tensor$* { *; }
-keepclassmembers class org.pytorch.executorch.** { com.facebook.jni.HybridData *; }
-dontwarn javax.annotation.**
-dontwarn org.jetbrains.annotations.**
-dontwarn com.facebook.**
"""


def link_resources(
    app: AndroidApp, sdk: Sdk, manifest: str, resources: Path, folder: Path, log: Path | None
) -> None:
    """Compiles the resources, and writes linked.apk, the class R, and what the manifest names."""
    write_atomic(folder / "AndroidManifest.xml", manifest)
    compiled = [folder / "resources.zip"] if resources.is_dir() else []
    for archive in compiled:
        compiling = (sdk.aapt2, "compile", "--dir", resources, "-o", archive)
        run_tool("compiling the app's resources", compiling, log)
    linking = (
        sdk.aapt2, "link", "-o", folder / LINKED, "-I", sdk.android_jar,
        "--manifest", folder / "AndroidManifest.xml", "--java", folder / CODE_OF_RESOURCES,
        "--proguard", folder / KEEP_RULES, "--min-sdk-version", app.min_sdk,
        "--target-sdk-version", app.target_sdk, "--version-code", app.version_code,
        "--version-name", app.version_name, "--debug-mode", "--auto-add-overlay", *compiled,
    )  # fmt: skip
    run_tool("linking the app's resources", linking, log)


def compile_code(
    jdk: Jdk,
    kotlin: Kotlin,
    android_jar: Path,
    sources: Iterable[Path],
    class_path: Sequence[Path],
    folder: Path,
    log: Path | None,
) -> None:
    """Compiles Kotlin and Java to classes in a folder."""
    files = sorted(sources)
    java = [file for file in files if file.suffix == ".java"]
    libraries = os.pathsep.join(map(str, (android_jar, *class_path, kotlin.stdlib)))
    if any(file.suffix == ".kt" for file in files):
        # Kotlin reads the Java files for what it refers to, and compiles none of them.
        argv = (
            jdk.program("java"), *JAVA_OPTIONS, "-cp", os.pathsep.join(map(str, kotlin.compiler)),
            _KOTLINC, "-no-jdk", "-no-stdlib", "-no-reflect", "-jvm-target", _BYTECODE,
            "-classpath", libraries, "-module-name", "app", "-d", folder, *files,
        )  # fmt: skip
        run_tool("compiling the app's Kotlin code", argv, log)
    if java:
        argv = (
            jdk.program("javac"), *(f"-J{option}" for option in JAVA_OPTIONS), "--release",
            _BYTECODE, "-proc:none", "-Xlint:-options", "-encoding", "UTF-8",
            "-classpath", f"{libraries}{os.pathsep}{folder}", "-d", folder, *java,
        )  # fmt: skip
        run_tool("compiling the app's Java code", argv, log)


def shrink(
    jdk: Jdk,
    sdk: Sdk,
    min_sdk: int,
    programs: Sequence[Path],
    rules: Sequence[Path],
    folder: Path,
    log: Path | None,
) -> None:
    """Writes classes.dex with what the app uses of its code and libraries."""
    own = folder / "rules.pro"
    write_atomic(own, _RULES)
    given = (word for path in (own, *rules) for word in ("--pg-conf", path))
    argv = (
        jdk.program("java"), *JAVA_OPTIONS, "-cp", sdk.r8, _R8, "--release", "--lib",
        sdk.android_jar, "--min-api", min_sdk, "--output", folder, *given, *programs,
    )  # fmt: skip
    run_tool("shrinking the app's code", argv, log)
    own.unlink()


# What every tool for Android calls them; the key protects nothing.
_PASSWORD = "android"  # noqa: S105
_ALIAS = "androiddebugkey"
_NAME = "CN=Android Debug,O=Android,C=US"
_VALID_DAYS = "10950"
_KEYSTORE = "debug.keystore"
_USER_HOME = "ANDROID_USER_HOME"
_SIGNER = "com.android.apksigner.ApkSignerTool"


def debug_keystore(station: Workstation) -> Path:
    """Where Android's tools keep the user's debug key.

    Gradle signs with the same, so that each app of one replaces one of the other on a phone.
    """
    named = station.environ.get(_USER_HOME)
    return (Path(named).expanduser() if named else station.home / ".android") / _KEYSTORE


def require_keystore(station: Workstation, jdk: Jdk, log: Path | None) -> Path:
    """Return the debug keystore; make it if there is none, and never change an existing one."""
    keystore = debug_keystore(station)
    if keystore.is_file():
        return keystore
    try:
        keystore.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".key.", dir=keystore.parent) as folder:
            new = Path(folder) / _KEYSTORE
            _make_key(jdk, new, log)
            # Fails if another process was faster, whose key is as good.
            if not keystore.is_file():
                os.link(new, keystore)
    except FileExistsError:
        pass
    except OSError as error:
        raise BuildError(
            f"the debug key cannot be written to {keystore}: {error.strerror}",
            remedy=f"Name another folder: export {_USER_HOME}=/path/to/a/folder",
        ) from error
    return keystore


def _make_key(jdk: Jdk, keystore: Path, log: Path | None) -> None:
    argv = (
        jdk.program("keytool"), "-genkeypair", "-keystore", keystore, "-storetype", "PKCS12",
        "-storepass", _PASSWORD, "-keypass", _PASSWORD, "-alias", _ALIAS, "-keyalg", "RSA",
        "-keysize", "2048", "-validity", _VALID_DAYS, "-dname", _NAME,
    )  # fmt: skip
    run_tool("making the debug key", argv, log)


def sign(
    jdk: Jdk, sdk: Sdk, keystore: Path, min_sdk: int, unsigned: Path, signed: Path, log: Path | None
) -> None:
    """Signs an APK by the schemes v1, v2 and v3."""
    argv = (
        jdk.program("java"), *JAVA_OPTIONS, "-cp", sdk.apksigner, _SIGNER, "sign",
        "--ks", keystore, "--ks-pass", f"pass:{_PASSWORD}",
        "--key-pass", f"pass:{_PASSWORD}", "--ks-key-alias", _ALIAS,
        "--min-sdk-version", min_sdk, "--v1-signing-enabled", "true",
        "--v2-signing-enabled", "true", "--v3-signing-enabled", "true",
        "--v4-signing-enabled", "false", "--out", signed, unsigned,
    )  # fmt: skip
    run_tool("signing the app", argv, log, keystore=str(keystore))
