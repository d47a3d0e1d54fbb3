"""Finds a Kotlin compiler. Files are read, nothing is started."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from etdeploy.apps.android.tools.jdk import studio_folders
from etdeploy.apps.android.tools.libraries import (
    Artifact,
    fetch_command,
    find_artifact,
    version_key,
    versions_of,
)
from etdeploy.backends.values import Workstation
from etdeploy.core.errors import Blocker
from etdeploy.core.files.basic import read_text

NAME = "Kotlin compiler"
VARIABLE = "KOTLIN_HOME"
_GROUP = "org.jetbrains.kotlin"
_EMBEDDABLE = "kotlin-compiler-embeddable"
# The oldest that was tried; before 2.0, the language has another front end.
_OLDEST = (2, 0)
_RECOMMENDED = "2.2.21"
# What the compiler's classes refer to, besides jars of its own version.
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
    """A Kotlin compiler, which runs on Java.

    Attributes:
        version: For example 2.2.21.
        compiler: The jars of its class path.
        stdlib: The library that compiled programs need.
        place: Its folder, for people.
    """

    version: str
    compiler: tuple[Path, ...]
    stdlib: Path
    place: Path


def find_kotlin(station: Workstation) -> Kotlin | Blocker:
    """That of KOTLIN_HOME, the PATH, Android Studio, or what Gradle or Maven fetched.

    The variable is the user's choice: if what it names does not do, that is reported and no other
    is used instead.
    """
    named = station.environ.get(VARIABLE)
    if named:
        found = _distribution(Path(named).expanduser())
        if found is None:
            why = f"{VARIABLE} names {named}, which has no lib/kotlin-compiler.jar"
            return Blocker(NAME, why, how_to_get())
        return _judged(found)
    usable = [each for each in _found(station) if _is_new(each)]
    if usable:
        return usable[0]
    old = next(_found(station), None)
    return _judged(old) if old else Blocker(NAME, _nothing(), how_to_get())


def how_to_get() -> str:
    """How to get one."""
    compiler = Artifact(_GROUP, _EMBEDDABLE, _RECOMMENDED)
    fetch = fetch_command(compiler).replace(" -Dtransitive=false", "")
    return (
        f"{fetch}\nor unpack Kotlin's release for the command line, and\n"
        f"export {VARIABLE}=/path/to/kotlinc"
    )


def _found(station: Workstation) -> Iterator[Kotlin]:
    for folder in _folders(station):
        found = _distribution(folder)
        if found:
            yield found
    for version in versions_of(station, _GROUP, _EMBEDDABLE):
        found = _embeddable(station, version)
        if found:
            yield found


def _folders(station: Workstation) -> Iterator[Path]:
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
    each = (
        find_artifact(station, Artifact(group, name, v)) for v in versions_of(station, group, name)
    )
    return next(filter(None, each), None)


def _is_new(kotlin: Kotlin) -> bool:
    return version_key(kotlin.version)[0] >= _OLDEST


def _judged(kotlin: Kotlin) -> Kotlin | Blocker:
    if _is_new(kotlin):
        return kotlin
    why = (
        f"the Kotlin compiler in {kotlin.place} is {kotlin.version}, and the app needs "
        f"{_OLDEST[0]}.{_OLDEST[1]} or newer"
    )
    return Blocker(NAME, why, how_to_get())


def _nothing() -> str:
    return (
        f"no Kotlin compiler was found: {VARIABLE} is not set, no kotlinc is on the PATH, and "
        "neither Android Studio nor the caches of Gradle and Maven have one"
    )
