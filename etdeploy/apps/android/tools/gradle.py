"""Finds a Gradle. Files are read, nothing is started."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from etdeploy.backends.values import Workstation
from etdeploy.core.errors import Blocker

NAME = "Gradle"
WRAPPER = "gradlew"
_WRAPPER_JAR = "gradle/wrapper/gradle-wrapper.jar"
# What the Android plugin 9 runs in; Debian's package is 4.4.
_OLDEST = (9, 1)
_JAR = re.compile(r"gradle-[a-z-]*?(\d+)\.(\d+)[\d.]*\.jar")
_OTHER_WAYS = (
    "Open the project in Android Studio, which brings its own; or build it with the SDK's tools:\n"
    "--set app.build=sdk"
)


def find_gradle(station: Workstation, project: Path | None = None) -> Path | Blocker:
    """The project's own wrapper, or else the one on the PATH.

    Args:
        station: This machine.
        project: Its wrapper counts only with its jar, which no project is generated with.
    """
    if project:
        wrapper = project / WRAPPER
        if os.access(wrapper, os.X_OK) and (project / _WRAPPER_JAR).is_file():
            return wrapper
    found = shutil.which("gradle", path=station.environ.get("PATH", ""))
    if found:
        version = _version(Path(found))
        if version is None or version >= _OLDEST:
            return Path(found)
        why = (
            f"{found} is Gradle {version[0]}.{version[1]}, and the Android plugin needs "
            f"{_OLDEST[0]}.{_OLDEST[1]} or newer"
        )
        return Blocker(NAME, why, _OTHER_WAYS)
    where = f"the project has no {WRAPPER}, and " if project else ""
    return Blocker(NAME, f"no Gradle was found: {where}none is on the PATH", _OTHER_WAYS)


def _version(program: Path) -> tuple[int, int] | None:
    """The version, by the names of its jars; None where they do not tell."""
    jars = (program.resolve().parent.parent / "lib").glob("gradle-*.jar")
    found = (_JAR.fullmatch(jar.name) for jar in sorted(jars))
    return next(((int(m[1]), int(m[2])) for m in found if m), None)
