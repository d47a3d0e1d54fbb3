"""Finds a Java development kit. Files are read, nothing is started."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from etdeploy.backends.values import Workstation
from etdeploy.core.commands import system_command
from etdeploy.core.errors import Blocker
from etdeploy.core.files.basic import read_text

NAME = "Java development kit"
VARIABLE = "JAVA_HOME"
# What today's R8, the Android Gradle plugin and apksigner run on.
_OLDEST = 17
_PROGRAMS = ("java", "javac", "keytool")
# Android Studio, where its archive is unpacked as its instructions say; its own JDK is in `jbr`.
_STUDIO = (
    "/opt/android-studio",
    "/usr/local/android-studio",
    "/snap/android-studio/current",
    "~/android-studio",
    "~/.local/share/JetBrains/Toolbox/apps/android-studio",
    "/Applications/Android Studio.app/Contents",
    "~/Applications/Android Studio.app/Contents",
)


@dataclass(frozen=True)
class Jdk:
    """A Java development kit.

    Attributes:
        path: Its folder, as JAVA_HOME names it.
        version: For example 17.0.15.
    """

    path: Path
    version: str

    def program(self, name: str) -> Path:
        return self.path / "bin" / name


def find_jdk(station: Workstation) -> Jdk | Blocker:
    """The one that JAVA_HOME names, that of the PATH, or Android Studio's.

    The variable is the user's choice: if what it names does not do, that is reported and no other
    is used instead.
    """
    named = station.environ.get(VARIABLE)
    if named:
        found = _inspect(Path(named).expanduser(), f"{VARIABLE} names")
        return found if found else _absent(f"{VARIABLE} names {named}, which does not exist")
    problems = []
    for path in _places(station):
        found = _inspect(path, "there is")
        if isinstance(found, Jdk):
            return found
        if found:
            problems.append(found)
    if problems:
        return problems[0]
    return _absent(
        f"no Java development kit was found: {VARIABLE} is not set, no javac is on the PATH, and "
        "there is no Android Studio in its usual places"
    )


def studio_folders(station: Workstation) -> Iterator[Path]:
    """Where Android Studio may be."""
    for place in _STUDIO:
        yield station.home / place[2:] if place.startswith("~/") else Path(place)


def _places(station: Workstation) -> Iterator[Path]:
    compiler = shutil.which("javac", path=station.environ.get("PATH", ""))
    if compiler:
        yield Path(compiler).resolve().parent.parent
    for studio in studio_folders(station):
        yield from (studio / "jbr", studio / "jbr/Contents/Home")


def _inspect(path: Path, words: str) -> Jdk | Blocker | None:
    """The JDK in a folder; None where there is nothing of one."""
    if not path.is_dir():
        return None
    release = re.search(r'^JAVA_VERSION="(?:1\.)?(\d+)([^"]*)"', read_text(path / "release"), re.M)
    absent = [name for name in _PROGRAMS if not (path / "bin" / name).is_file()]
    if release is None and len(absent) == len(_PROGRAMS):
        # A stub that only asks the user to install one, as on macOS.
        return _absent(f"{words} {path}, which is no JDK") if VARIABLE in words else None
    if absent:
        why = f"{words} {path}, which has no bin/{absent[0]}: it is only a Java runtime"
        return _absent(why)
    if release is None:
        return _absent(f"{words} {path}, whose version cannot be read from its file `release`")
    version = release[1] + release[2]
    if int(release[1]) < _OLDEST:
        return _absent(f"{words} Java {version} in {path}, and the tools need {_OLDEST} or newer")
    return Jdk(path, version)


def _absent(why: str) -> Blocker:
    return Blocker(NAME, why, how_to_get())


def how_to_get() -> str:
    """How to get one."""
    package = system_command("openjdk@17" if _is_brew() else "openjdk-17-jdk-headless")
    return f"{package}\nor unpack any JDK from {_OLDEST} on, and\nexport {VARIABLE}=/path/to/jdk"


def _is_brew() -> bool:
    return system_command("x").startswith("brew")
