"""Resources and code: aapt2, the compilers of Kotlin and Java, and R8."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from etdeploy.apps.android.app import AndroidApp
from etdeploy.apps.android.archive import JAVA_OPTIONS, run_tool
from etdeploy.apps.android.sdk import Jdk, Sdk
from etdeploy.apps.android.tools import Kotlin
from etdeploy.core.files.basic import write_atomic

LINKED = "linked.apk"
CODE_OF_RESOURCES = "java"
KEPT = "kept.pro"
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
        "--proguard", folder / KEPT, "--min-sdk-version", app.min_sdk,
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
