"""Finds what builds an Android app: a Kotlin compiler, Maven's libraries, Gradle."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from etdeploy.apps.android.sdk import Jdk, Sdk, find_jdk, find_sdk, studio_folders
from etdeploy.backends.values import Workstation, tool_finding
from etdeploy.core.errors import Blocker, BuildError
from etdeploy.core.files.basic import read_text
from etdeploy.core.values import DoctorCheck

_GRADLE_HOME = "GRADLE_USER_HOME"
_NUMBERS = re.compile(r"\d+")


@dataclass(frozen=True)
class Artifact:
    """A file of Maven: `org.pytorch:executorch-android:1.5.1`, as an aar, jar or pom."""

    group: str
    name: str
    version: str
    kind: str = "jar"

    @property
    def coordinates(self) -> str:
        return f"{self.group}:{self.name}:{self.version}"

    @property
    def file(self) -> str:
        return f"{self.name}-{self.version}.{self.kind}"


def fetch_command(artifact: Artifact) -> str:
    """The command that fetches it into Maven's folder, without what it depends on."""
    wanted = f"{artifact.coordinates}:{artifact.kind}"
    return f"mvn dependency:get -Dtransitive=false -Dartifact={wanted}"


def find_artifact(station: Workstation, artifact: Artifact) -> Path | None:
    """The file in Gradle's cache or Maven's folder; None where neither has it."""
    return next((p for f in _artifact_folders(station, artifact) for p in f if p.is_file()), None)


def list_versions(station: Workstation, group: str, name: str) -> tuple[str, ...]:
    """The versions of an artifact that are there, the newest first."""
    folders = (_gradle(station) / group / name, _maven(station, group) / name)
    found = {path.name for folder in folders for path in folder.glob("*") if path.is_dir()}
    return tuple(sorted(found, key=version_key, reverse=True))


def version_key(version: str) -> tuple[tuple[int, ...], bool]:
    """Orders versions; a release comes after its previews."""
    release, _, preview = version.partition("-")
    return tuple(int(n) for n in _NUMBERS.findall(release)), not preview


def _artifact_folders(station: Workstation, artifact: Artifact) -> Iterator[Iterator[Path]]:
    gradle = _gradle(station) / artifact.group / artifact.name / artifact.version
    # A folder for each digest.
    yield iter(sorted(gradle.glob(f"*/{artifact.file}")))
    maven = _maven(station, artifact.group) / artifact.name / artifact.version
    yield iter([maven / artifact.file])


def _gradle(station: Workstation) -> Path:
    return _gradle_home(station) / "caches/modules-2/files-2.1"


def _gradle_home(station: Workstation) -> Path:
    named = station.environ.get(_GRADLE_HOME)
    return Path(named).expanduser() if named else station.home / ".gradle"


def _maven(station: Workstation, group: str) -> Path:
    return station.home.joinpath(".m2/repository", *group.split("."))


# What ExecuTorch's library needs to run, as its releases 1.0 to 1.5 name it. It also names
# androidx.core, of which it uses nothing.
FBJNI = Artifact("com.facebook.fbjni", "fbjni", "0.7.0", "aar")
NATIVE_LOADER = Artifact("com.facebook.soloader", "nativeloader", "0.10.5", "jar")
_NEEDED = (FBJNI, NATIVE_LOADER)


@dataclass(frozen=True)
class Library:
    """A library of an app: its name, and its aar or jar."""

    name: str
    path: Path


def find_libraries(
    station: Workstation, coordinates: Sequence[str], aar: Path | None = None
) -> tuple[tuple[Library, ...], tuple[Blocker, ...]]:
    """The libraries of an app, and a blocker for each missing one."""
    published = []
    for each in coordinates:
        group, name, version = each.split(":")
        published.append(Artifact(group, name, version, "aar"))
    files = [
        (artifact.name, _named_aar(aar) if aar else _fetched_file(station, artifact))
        for artifact in published
    ]
    poms = [_pom(station, artifact) for artifact in published]
    files += [(each.name, _fetched_file(station, each)) for each in needed_artifacts(poms)]
    found = tuple(Library(name, file) for name, file in files if isinstance(file, Path))
    return found, tuple(file for _, file in files if isinstance(file, Blocker))


def needed_artifacts(poms: Sequence[str]) -> Iterator[Artifact]:
    """The artifacts that ExecuTorch's library needs, in the versions that its poms name."""
    for artifact in _NEEDED:
        entry = rf"<artifactId>\s*{artifact.name}\s*</artifactId>\s*<version>\s*([\w.-]+)\s*<"
        versions = [found[1] for pom in poms if (found := re.search(entry, pom))]
        version = versions[0] if versions else artifact.version
        yield Artifact(artifact.group, artifact.name, version, artifact.kind)


def _pom(station: Workstation, artifact: Artifact) -> str:
    pom = Artifact(artifact.group, artifact.name, artifact.version, "pom")
    path = find_artifact(station, pom)
    return read_text(path) if path else ""


def _named_aar(aar: Path) -> Path | Blocker:
    if aar.is_file():
        return aar
    why = f"app.aar names {aar}, which does not exist"
    return Blocker("AAR of ExecuTorch", why, "Name an .aar that is there, or remove app.aar.")


def _fetched_file(station: Workstation, artifact: Artifact) -> Path | Blocker:
    path = find_artifact(station, artifact)
    if path:
        return path
    why = (
        f"{artifact.coordinates} ({artifact.kind}) is not on this machine: neither Gradle's cache "
        "nor Maven's folder ~/.m2 has it"
    )
    remedy = fetch_command(artifact)
    if artifact.group == "org.pytorch":
        remedy += "\nor name a file of it: --set app.aar=/path/to/executorch-android.aar"
    return Blocker(artifact.file, why, remedy)


_KOTLIN = "Kotlin compiler"
KOTLIN_HOME = "KOTLIN_HOME"
_GROUP = "org.jetbrains.kotlin"
_EMBEDDABLE = "kotlin-compiler-embeddable"
# The oldest that was tried; before 2.0, the language has another front end.
_OLDEST_KOTLIN = (2, 0)
_RECOMMENDED_KOTLIN = "2.2.21"
# The jars that the compiler needs: those of its version, and others.
_SAME_VERSION = ("kotlin-stdlib", "kotlin-script-runtime", "kotlin-daemon-embeddable")
_OTHERS = (
    (_GROUP, "kotlin-reflect"),
    ("org.jetbrains.kotlinx", "kotlinx-coroutines-core-jvm"),
    ("org.jetbrains", "annotations"),
)
# Of compilers before 2.2.
_TROVE = ("org.jetbrains.intellij.deps", "trove4j")
_VERSION = re.compile(r"\d+\.\d+\.\d+\S*")


@dataclass(frozen=True)
class Kotlin:
    """A Kotlin compiler, whose jars run on Java; `place` is its folder, for people."""

    version: str
    compiler: tuple[Path, ...]
    stdlib: Path
    place: Path


def find_kotlin(station: Workstation) -> Kotlin | Blocker:
    """That of KOTLIN_HOME, the PATH, Android Studio, or what Gradle or Maven fetched.

    The variable is the user's choice: if it names an unusable compiler, no other is used instead.
    """
    named = station.environ.get(KOTLIN_HOME)
    if named:
        found = _distribution(Path(named).expanduser())
        if found is None:
            why = f"{KOTLIN_HOME} names {named}, which has no lib/kotlin-compiler.jar"
            return Blocker(_KOTLIN, why, how_to_get_kotlin())
        return _judged(found)
    usable = [each for each in _kotlins(station) if _is_new(each)]
    if usable:
        return usable[0]
    old = next(_kotlins(station), None)
    return _judged(old) if old else Blocker(_KOTLIN, _nothing(), how_to_get_kotlin())


def how_to_get_kotlin() -> str:
    compiler = Artifact(_GROUP, _EMBEDDABLE, _RECOMMENDED_KOTLIN)
    fetch = fetch_command(compiler).replace(" -Dtransitive=false", "")
    return (
        f"{fetch}\nor unpack Kotlin's release for the command line, and\n"
        f"export {KOTLIN_HOME}=/path/to/kotlinc"
    )


def _kotlins(station: Workstation) -> Iterator[Kotlin]:
    for folder in _kotlin_folders(station):
        found = _distribution(folder)
        if found:
            yield found
    for version in list_versions(station, _GROUP, _EMBEDDABLE):
        found = _embeddable(station, version)
        if found:
            yield found


def _kotlin_folders(station: Workstation) -> Iterator[Path]:
    """Folders of releases for the command line."""
    script = shutil.which("kotlinc", path=station.environ.get("PATH", ""))
    if script:
        yield Path(script).resolve().parent.parent
    for studio in studio_folders(station):
        yield studio / "plugins/Kotlin/kotlinc"


def _distribution(folder: Path) -> Kotlin | None:
    compiler, stdlib = (folder / "lib" / f"kotlin-{n}.jar" for n in ("compiler", "stdlib"))
    version = _VERSION.search(read_text(folder / "build.txt"))
    if version is None or not compiler.is_file() or not stdlib.is_file():
        return None
    # Its manifest names the others beside it.
    return Kotlin(version[0].partition("-")[0], (compiler,), stdlib, folder)


def _embeddable(station: Workstation, version: str) -> Kotlin | None:
    """The compiler as build tools run it; None if one of its parts is absent."""
    same = [Artifact(_GROUP, name, version) for name in (_EMBEDDABLE, *_SAME_VERSION)]
    paths = [find_artifact(station, artifact) for artifact in same]
    paths += [_newest(station, group, name) for group, name in _OTHERS]
    jars = tuple(path for path in paths if path)
    if len(jars) < len(paths):
        return None
    trove = _newest(station, *_TROVE)
    return Kotlin(version, (*jars, *([trove] if trove else [])), jars[1], jars[0].parent)


def _newest(station: Workstation, group: str, name: str) -> Path | None:
    artifacts = (Artifact(group, name, version) for version in list_versions(station, group, name))
    paths = (find_artifact(station, artifact) for artifact in artifacts)
    return next(filter(None, paths), None)


def _is_new(kotlin: Kotlin) -> bool:
    return version_key(kotlin.version)[0] >= _OLDEST_KOTLIN


def _judged(kotlin: Kotlin) -> Kotlin | Blocker:
    if _is_new(kotlin):
        return kotlin
    why = (
        f"the Kotlin compiler in {kotlin.place} is {kotlin.version}, and the app needs "
        f"{_OLDEST_KOTLIN[0]}.{_OLDEST_KOTLIN[1]} or newer"
    )
    return Blocker(_KOTLIN, why, how_to_get_kotlin())


def _nothing() -> str:
    return (
        f"Kotlin compiler not found: {KOTLIN_HOME} is not set, no kotlinc is on the PATH, and "
        "neither Android Studio nor the caches of Gradle and Maven have one"
    )


_APPS = "Android apps: etdeploy app android"
# What the templates are compiled against.
COMPILE_SDK = 36


@dataclass(frozen=True)
class Tools:
    """The tools that build an app without Gradle, and its libraries."""

    jdk: Jdk
    sdk: Sdk
    kotlin: Kotlin
    libraries: tuple[Library, ...]


def find_tools(
    station: Workstation,
    coordinates: Sequence[str],
    *,
    compile_sdk: int = COMPILE_SDK,
    project: Path | None = None,
    aar: Path | None = None,
) -> Tools | tuple[Blocker, ...]:
    """All tools, or a blocker for each missing one."""
    jdk = find_jdk(station)
    sdk = find_sdk(station, compile_sdk, project)
    kotlin = find_kotlin(station)
    libraries, absent = find_libraries(station, coordinates, aar)
    if isinstance(jdk, Jdk) and isinstance(sdk, Sdk) and isinstance(kotlin, Kotlin) and not absent:
        return Tools(jdk, sdk, kotlin, libraries)
    return (*(each for each in (jdk, sdk, kotlin) if isinstance(each, Blocker)), *absent)


def require_tools(found: Tools | tuple[Blocker, ...]) -> Tools:
    if isinstance(found, Tools):
        return found
    reasons = list(dict.fromkeys(blocker.why for blocker in found))
    raise BuildError(
        "the app cannot be built: " + "; ".join(reasons),
        remedy="\n".join(dict.fromkeys(blocker.remedy for blocker in found)),
    )


def tool_findings(station: Workstation) -> Iterator[DoctorCheck]:
    """The lines of `etdeploy doctor` about the tools for apps."""
    jdk, sdk = find_jdk(station), find_sdk(station, COMPILE_SDK)
    kotlin, gradle = find_kotlin(station), find_gradle(station)
    if isinstance(jdk, Jdk):
        yield tool_finding("JDK", _APPS, f"{jdk.version} in {jdk.path}")
    else:
        yield tool_finding("JDK", _APPS, jdk)
    if isinstance(sdk, Sdk):
        parts = f"build tools {sdk.build_tools.name} and {sdk.platform.name}"
        yield tool_finding("Android SDK", _APPS, f"{parts} in {sdk.path}")
    else:
        yield tool_finding("Android SDK", _APPS, sdk)
    found = f"{kotlin.version} in {kotlin.place}" if isinstance(kotlin, Kotlin) else kotlin
    yield tool_finding("Kotlin", f"{_APPS}, where it is built without Gradle", found)
    yield tool_finding(
        "Gradle",
        f"{_APPS}; not needed, the SDK's tools do it too",
        gradle if isinstance(gradle, Blocker) else str(gradle),
    )


GRADLE = "Gradle"
WRAPPER = "gradlew"
# Gradle's own scripts need the jar; those of the templates fetch Gradle without one.
_WRAPPER_JAR = "gradle/wrapper/gradle-wrapper.jar"
_WRAPPER_FILE = "gradle/wrapper/gradle-wrapper.properties"
# What the Android plugin 9 runs in; Debian's package is 4.4.
_OLDEST_GRADLE = (9, 1)
_DISTRIBUTION = re.compile(r"^distributionUrl\s*=.*/([\w.-]+)\.zip\s*$", re.MULTILINE)
_JAR = re.compile(r"gradle-[a-z-]*?(\d+)\.(\d+)[\d.]*\.jar")
_OTHER_WAYS = (
    "Open the project in Android Studio, which brings its own; or build it with the SDK's tools:\n"
    "--set app.build=sdk"
)


def find_gradle(station: Workstation, project: Path | None = None) -> Path | Blocker:
    """The project's own wrapper, or else the one on the PATH.

    A wrapper of the templates counts if its Gradle was fetched before: that takes 130 MB.
    """
    if project:
        wrapper = project / WRAPPER
        ready = (project / _WRAPPER_JAR).is_file() or _is_fetched(station, project)
        if ready and os.access(wrapper, os.X_OK):
            return wrapper
    found = shutil.which("gradle", path=station.environ.get("PATH", ""))
    if found:
        version = _gradle_version(Path(found))
        if version is None or version >= _OLDEST_GRADLE:
            return Path(found)
        why = (
            f"{found} is Gradle {version[0]}.{version[1]}, and the Android plugin needs "
            f"{_OLDEST_GRADLE[0]}.{_OLDEST_GRADLE[1]} or newer"
        )
        return Blocker(GRADLE, why, _OTHER_WAYS)
    where = f"the project has no {WRAPPER} whose Gradle is there, and " if project else ""
    return Blocker(GRADLE, f"Gradle not found: {where}none is on the PATH", _OTHER_WAYS)


def _is_fetched(station: Workstation, project: Path) -> bool:
    """Whether the Gradle that a project's wrapper names is in the user's folder."""
    found = _DISTRIBUTION.search(read_text(project / _WRAPPER_FILE))
    folder = _gradle_home(station) / "wrapper/dists"
    # Below a digest of the whole address; the file is written when all is unpacked.
    return found is not None and any(folder.glob(f"{found[1]}/*/{found[1]}.zip.ok"))


def _gradle_version(program: Path) -> tuple[int, int] | None:
    """The version, by the names of its jars; None where they do not tell."""
    jars = (program.resolve().parent.parent / "lib").glob("gradle-*.jar")
    found = (_JAR.fullmatch(jar.name) for jar in sorted(jars))
    return next(((int(m[1]), int(m[2])) for m in found if m), None)
