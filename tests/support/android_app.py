"""Generated Android apps, compiled and run without an SDK, a phone or Gradle.

Kotlin's compiler, Android's framework, Robolectric, aapt2 and ktlint come from Maven. ExecuTorch's
Java API stands in `android_api`: the same public classes, over a small library of their own that
runs programs with the libraries of ExecuTorch's wheel. As in ExecuTorch's API, methods share no
memory.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.sax.saxutils import quoteattr

from etdeploy.apps.android.commands import JAVA_OPTIONS
from etdeploy.apps.project import render_tree
from etdeploy.core.files.basic import new_folder, resource_folder
from etdeploy.core.files.locks import exclusive

_SUPPORT = Path(__file__).resolve().parent
# Each with the class path that it makes; `*` without what it depends on.
_ARTIFACTS = {
    "kotlin": "org.jetbrains.kotlin:kotlin-compiler-embeddable:2.2.10:jar",
    "framework": "org.robolectric:android-all:14-robolectric-10818077:jar",
    "instrumented": "org.robolectric:android-all-instrumented:14-robolectric-10818077-i7:jar",
    "robolectric": "org.robolectric:robolectric:4.17:jar",
    "monitor": "androidx.test:monitor:1.8.0:aar*",
    "junit": "junit:junit:4.13.2:jar",
    "coroutines": "org.jetbrains.kotlinx:kotlinx-coroutines-core-jvm:1.10.2:jar",
    "ktlint": "com.pinterest.ktlint:ktlint-cli:1.7.1:jar:all*",
    "apktool": "org.apktool:apktool-lib:3.0.3:jar*",
}
_JAVA_RELEASE = "11"
_ENVIRONMENT = {"ROBOLECTRIC_OFFLINE": "1", "MAVEN_OPTS": " ".join(JAVA_OPTIONS)}


# Robolectric moves descriptors of files from one object to another.
_OPENED = ("--add-opens", "java.base/java.io=ALL-UNNAMED")


def missing_tools() -> str | None:
    """What of this machine's tools is not there."""
    absent = [tool for tool in ("mvn", "java", "javac", "c++") if shutil.which(tool) is None]
    return ", ".join(absent) if absent else None


@dataclass(frozen=True)
class Tools:
    """What is needed to compile and run an app.

    Attributes:
        folder: With aapt2, the stand-in's classes and its native library.
        paths: Class path of each artifact, by its name.
    """

    folder: Path
    paths: Mapping[str, str]

    @property
    def framework(self) -> str:
        return self.paths["framework"]

    @property
    def standard_library(self) -> str:
        """Of Kotlin."""
        return next(p for p in self.paths["kotlin"].split(":") if "kotlin-stdlib-" in p)


def obtain_tools(shared: Path) -> Tools:
    """Downloads and makes them, once in a test run.

    Raises:
        subprocess.CalledProcessError: Maven, or a compiler, fails.
    """
    folder = shared / "android-tools"
    with exclusive(folder.with_suffix(".lock"), "Kotlin and Android for tests"):
        if not folder.is_dir():
            with new_folder(folder) as work:
                _make_tools(work)
    return Tools(folder, json.loads((folder / "paths.json").read_text()))


def _make_tools(folder: Path) -> None:
    paths = resolve(folder / "maven")
    (folder / "paths.json").write_text(json.dumps(paths))
    with zipfile.ZipFile(paths["apktool"]) as jar:
        aapt2 = folder / "aapt2"
        aapt2.write_bytes(jar.read("prebuilt/linux/aapt2"))
        aapt2.chmod(0o755)
    with zipfile.ZipFile(paths["monitor"]) as archive:
        (folder / "monitor.jar").write_bytes(archive.read("classes.jar"))
    api = folder / "api"
    run("javac", "--release", _JAVA_RELEASE, "-d", api, *(_SUPPORT / "android_api").rglob("*.java"))
    _compile_native(folder / "native")
    tests = folder / "tests"
    path = [paths[name] for name in ("framework", "robolectric", "junit")]
    sources = (_SUPPORT / "android_robolectric").glob("*.java")
    run("javac", "-nowarn", "-cp", ":".join(path), "-d", tests, *sources)


def resolve(folder: Path, artifacts: Mapping[str, str] = _ARTIFACTS) -> dict[str, str]:
    """Class paths by artifact; one start of Maven for all."""
    for name, text in artifacts.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "pom.xml").write_text(_pom(name, f"<dependencies>{_dependency(text)}"
            "</dependencies>"))  # fmt: skip
    modules = "".join(f"<module>{name}</module>" for name in artifacts)
    (folder / "pom.xml").write_text(_pom("all", f"<modules>{modules}</modules>"))
    run(
        "mvn", "--batch-mode", "--quiet", "--file", folder / "pom.xml",
        "dependency:build-classpath", "-Dmdep.outputFile=path.txt",
    )  # fmt: skip
    return {name: (folder / name / "path.txt").read_text().strip() for name in artifacts}


def _pom(name: str, body: str) -> str:
    return (
        "<project><modelVersion>4.0.0</modelVersion><groupId>tests</groupId>"
        f"<artifactId>{name}</artifactId><version>1</version><packaging>pom</packaging>{body}"
        "</project>"
    )


def _dependency(text: str) -> str:
    group, artifact, version, kind, *classifier = text.rstrip("*").split(":")
    alone = (
        "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion>"
        "</exclusions>"
        if text.endswith("*")
        else ""
    )
    classified = "".join(f"<classifier>{each}</classifier>" for each in classifier)
    return (
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>"
        f"<version>{version}</version><type>{kind}</type>{classified}{alone}</dependency>"
    )


def _compile_native(folder: Path) -> None:
    """The stand-in's native library, with the libraries of the wheel."""
    import importlib.util

    found = importlib.util.find_spec("executorch")
    assert found is not None
    package = Path((found.submodule_search_locations or [])[0])
    headers = package / "include"
    java = Path(shutil.which("javac") or "").resolve().parents[1] / "include"
    names = ("", "_threadpool", "_kernels_optimized", "_kernels_quantized", "_backend_xnnpack")
    folder.mkdir()
    run(
        "c++", "-std=c++17", "-O2", "-w", "-fPIC", "-shared",
        "-o", folder / "libexecutorch_jni.so", _SUPPORT / "android_api" / "module.cpp",
        "-DC10_USING_CUSTOM_GENERATED_MACROS", f"-I{resource_folder('templates') / 'runner'}",
        f"-I{java}", f"-I{java / 'linux'}", f"-I{headers}",
        f"-I{headers}/executorch/runtime/core/portable_type/c10",
        # Kernels and backends register themselves: nothing refers to them.
        "-Wl,--no-as-needed", f"-L{package / 'lib'}", f"-Wl,-rpath,{package / 'lib'}",
        *(f"-lexecutorch{name}" for name in names),
    )  # fmt: skip


def compile_kotlin(
    tools: Tools, path: Sequence[str | Path], classes: Path, sources: Sequence[Path]
) -> None:
    """Compiles without a warning; libraries may be of a newer Kotlin."""
    run(
        "java", *JAVA_OPTIONS, "-cp", tools.paths["kotlin"],
        "org.jetbrains.kotlin.cli.jvm.K2JVMCompiler", f"-Xjdk-release={_JAVA_RELEASE}",
        "-jvm-target", _JAVA_RELEASE, "-no-stdlib", "-no-reflect", "-Werror",
        "-Xskip-metadata-version-check", "-cp", ":".join(map(str, path)), "-d", classes, *sources,
    )  # fmt: skip


def app_values(workload: str, **changed: Any) -> dict[str, Any]:
    """What the templates get."""
    values = {
        "id": "org.example.tiny",
        "name": "Tiny",
        "target": "Tiny",
        "version_name": "1.0",
        "version_code": 1,
        "min_sdk": 23,
        "compile_sdk": 36,
        "target_sdk": 36,
        "workload": workload,
        "runtime": "prebuilt",
        "artifacts": ["org.pytorch:executorch-android:1.5.1"],
        "abis": ["arm64-v8a"],
        "extracted": False,
        "system_libraries": (),
        "variables": (),
        "model_name": "tiny",
        "etdeploy_version": "0",
        "library": False,
        "task": "tensor",
        "features": (),
    }
    return {"app": SimpleNamespace(**(values | changed))}


def render(folder: Path, workload: str, **changed: Any) -> Path:
    """A project in `folder`, without its payload."""
    templates = resource_folder("templates") / "android"
    for path, data in render_tree(templates, app_values(workload, **changed)).items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    return folder


@dataclass(frozen=True)
class App:
    """A compiled app: its project, and the folder with classes and resources."""

    project: Path
    built: Path
    id: str = "org.example.tiny"

    @property
    def payload(self) -> Path:
        return self.project / "app" / "src" / "main" / "assets" / "model"

    @property
    def local_tests(self) -> list[str]:
        """The classes of the project's tests that need no device."""
        folder = self.project / "app" / "src" / "test" / "kotlin"
        paths = sorted(path.relative_to(folder) for path in folder.rglob("*Test.kt"))
        return [".".join(path.with_suffix("").parts) for path in paths]

    def link(self, tools: Tools) -> Path:
        """Links manifest, resources and payload, as they are now."""
        main, out = self.project / "app" / "src" / "main", self.built
        out.mkdir(parents=True, exist_ok=True)
        manifest = (main / "AndroidManifest.xml").read_text()
        manifest = manifest.replace("${applicationId}", self.id)
        named = manifest.replace("<manifest ", f"<manifest package={quoteattr(self.id)} ", 1)
        # As a build for debugging has it.
        (out / "AndroidManifest.xml").write_text(
            named.replace("<application", '<application android:debuggable="true"', 1)
        )
        (main / "assets").mkdir(exist_ok=True)
        # Those of the instrumented test are in its own APK on a phone.
        folders = (main / "assets", main.parent / "androidTest" / "assets")
        assets = [word for folder in folders if folder.is_dir() for word in ("-A", folder)]
        run(tools.folder / "aapt2", "compile", "--dir", main / "res", "-o", out / "res.zip")
        run(
            tools.folder / "aapt2", "link", "-o", out / "resources.apk", "-I", tools.framework,
            "--manifest", out / "AndroidManifest.xml", "--java", out / "generated",
            "--min-sdk-version", "23", "--target-sdk-version", "34", "--version-code", "1",
            "--version-name", "1.0", *assets, "-0", ".pte", out / "res.zip",
        )  # fmt: skip
        return out / "resources.apk"

    def compile(self, tools: Tools, api: str | None = None) -> Path:
        """Compiles app and tests against the framework and ExecuTorch's API, without a warning."""
        self.link(tools)
        classes = self.built / "classes"
        generated = sorted((self.built / "generated").rglob("*.java"))
        sources = sorted((self.project / "app" / "src").rglob("*.kt"))
        path = [
            tools.framework, api or str(tools.folder / "api"), tools.standard_library,
            tools.paths["junit"], str(tools.folder / "monitor.jar"),
        ]  # fmt: skip
        compile_kotlin(tools, path, classes, [*sources, *generated])
        run("javac", "-nowarn", "--release", _JAVA_RELEASE, "-cp", tools.framework, "-d", classes,
            *generated)  # fmt: skip
        return classes

    def start(
        self, tools: Tools, folder: Path, scenarios: Mapping[str, Mapping[str, Any]],
        library: Path | None = None, api: str | None = None,
    ) -> dict[str, Screen]:  # fmt: skip
        """Runs the app's local tests, and starts the app once for each scenario.

        android_robolectric/AppRun.java has what a scenario can say.

        Args:
            tools: What runs it.
            folder: Gets what the app wrote and showed.
            scenarios: By their names.
            library: Folder of the native library; the stand-in's unless given.
            api: Class path of ExecuTorch's Java API; the stand-in's unless given.
        """
        folder.mkdir(parents=True)
        for name, asked in scenarios.items():
            (folder / f"{name}.json").write_text(json.dumps(asked))
        config = self.built / "config" / "com" / "android" / "tools" / "test_config.properties"
        config.parent.mkdir(parents=True, exist_ok=True)
        config.write_text(
            f"android_resource_apk={self.link(tools)}\n"
            f"android_merged_manifest={self.built / 'AndroidManifest.xml'}\n"
            f"android_custom_package={self.id}\n"
        )
        path = [
            self.built / "config", self.built / "classes", tools.folder / "tests",
            api or tools.folder / "api", tools.folder / "monitor.jar", tools.paths["robolectric"],
            tools.paths["junit"], tools.framework, tools.standard_library,
        ]  # fmt: skip
        said = run(
            "java", *JAVA_OPTIONS, *_OPENED, "-cp", ":".join(map(str, path)),
            f"-Dapp.scenarios={folder}",
            f"-Drobolectric.dependency.dir={Path(tools.paths['instrumented']).parent}",
            f"-Djava.library.path={library or tools.folder / 'native'}",
            "org.junit.runner.JUnitCore", "AppRun", *self.local_tests,
        )  # fmt: skip
        (folder / "junit.txt").write_text(said)
        return {name: Screen(folder / name) for name in scenarios}


@dataclass(frozen=True)
class AndroidLibraries:
    """Projects of libraries, compiled with the consumer of `android_library`."""

    built: Path
    libraries: Sequence[Path]

    def run(self, tools: Tools, *tests: str) -> str:
        """Compiles everything as one app, and gives what JUnit prints of its tests."""
        self.built.mkdir(parents=True)
        manifest = self.built / "AndroidManifest.xml"
        manifest.write_text('<manifest xmlns:android="http://schemas.android.com/apk/res/android" '
            'package="org.example.consumer"><application/></manifest>')  # fmt: skip
        assets = self.built / "assets"
        for library in self.libraries:
            for kind in ("main/assets", "androidTest/assets"):
                folder = library / "library" / "src" / kind
                if folder.is_dir():
                    shutil.copytree(folder, assets, dirs_exist_ok=True)
        resources = self.built / "resources.apk"
        run(
            tools.folder / "aapt2", "link", "-o", resources, "-I", tools.framework, "--manifest",
            manifest, "--min-sdk-version", "26", "--target-sdk-version", "34", "-A", assets,
            "-0", ".pte",
        )  # fmt: skip
        path: list[str | Path] = [
            tools.framework, tools.folder / "api", tools.standard_library,
            tools.paths["coroutines"], tools.folder / "monitor.jar", tools.paths["robolectric"],
            tools.paths["junit"],
        ]  # fmt: skip
        sources = [each for library in self.libraries for each in library.rglob("*.kt")]
        sources += (_SUPPORT / "android_library").glob("*.kt")
        compile_kotlin(tools, path, self.built / "classes", sorted(sources))
        config = self.built / "config" / "com" / "android" / "tools" / "test_config.properties"
        config.parent.mkdir(parents=True)
        config.write_text(f"android_resource_apk={resources}\nandroid_merged_manifest={manifest}\n"
            "android_custom_package=org.example.consumer\n")  # fmt: skip
        classes = [self.built / "config", self.built / "classes", *path]
        return run(
            "java", *JAVA_OPTIONS, "-cp", ":".join(map(str, classes)),
            f"-Drobolectric.dependency.dir={Path(tools.paths['instrumented']).parent}",
            f"-Djava.library.path={tools.folder / 'native'}", "org.junit.runner.JUnitCore", *tests,
        )  # fmt: skip


@dataclass(frozen=True)
class Screen:
    """What a scenario left: the files of the app, and what its screen showed."""

    folder: Path
    _read: dict[str, Any] = field(default_factory=dict)

    @property
    def envelope(self) -> dict[str, Any]:
        """results.json of the app."""
        found: dict[str, Any] = json.loads((self.folder / "files" / "results.json").read_text())
        return found

    @property
    def results(self) -> dict[str, Any]:
        """What the runner's results.json would be."""
        envelope = self.envelope
        assert envelope["status"] == "done", envelope["error"]
        found: dict[str, Any] = envelope["results"]
        return found

    @property
    def error(self) -> tuple[str, str]:
        """Kind and message of what ended the run."""
        envelope = self.envelope
        assert envelope["status"] == "failed"
        assert envelope["results"] is None
        return envelope["error"]["kind"], envelope["error"]["message"]

    @property
    def shown(self) -> dict[str, Any]:
        """The screen: its views, and what was shared."""
        if not self._read:
            self._read.update(json.loads((self.folder / "screen.json").read_text()))
        return self._read

    @property
    def texts(self) -> list[str]:
        return [view["text"] for view in self.shown["views"] if view.get("text")]

    def text(self, identifier: str) -> str:
        """Of the view with this id."""
        found: str = next(v["text"] for v in self.shown["views"] if v.get("id") == identifier)
        return found


def describe(payload: Path, **facts: Any) -> None:
    """Writes model.json, with what every model has."""
    program = payload / "program.pte"
    data = program.read_bytes() if program.exists() else b""
    model: dict[str, Any] = {
        "name": "tiny",
        "workload": "inference",
        "program": "program.pte",
        "bundled": True,
        "program_sha256": hashlib.sha256(data).hexdigest(),
        "program_bytes": len(data),
        "executorch_version": "1.5.1",
        "backends": ["XnnpackBackend"],
        "quantization": "none",
        "method": "forward",
        "warmup": 2,
        "iterations": 5,
        "threads": 0,
        "sizes": [],
        "generation": None,
    }
    (payload / "model.json").write_text(json.dumps(model | facts, indent=1))


def run(*argv: str | Path, cwd: Path | None = None) -> str:
    """The output of a tool; both of its streams are in the error of one that fails."""
    ended = subprocess.run(
        [*map(str, argv)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env=os.environ | _ENVIRONMENT, cwd=cwd,
    )  # fmt: skip
    assert ended.returncode == 0, f"{argv[0]} failed:\n{ended.stdout[-20_000:]}"
    return ended.stdout


def ktlint(tools: Tools, project: Path) -> None:
    """Checks a project's Kotlin, the files of Gradle included."""
    # For an absolute pattern, ktlint looks through all of the machine.
    run(
        "java",
        *JAVA_OPTIONS,
        "-jar",
        tools.paths["ktlint"],
        "--relative",
        "**/*.kt",
        "**/*.kts",
        cwd=project,
    )
