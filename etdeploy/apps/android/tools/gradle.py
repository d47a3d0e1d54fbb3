"""Finds a Gradle. Files are read, nothing is started."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from etdeploy.backends.values import Workstation
from etdeploy.core.blocker import Blocker

NAME = "Gradle"
WRAPPER = "gradlew"
_WRAPPER_JAR = "gradle/wrapper/gradle-wrapper.jar"


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
        return Path(found)
    where = f"the project has no {WRAPPER}, and " if project else ""
    return Blocker(
        NAME,
        f"no Gradle was found: {where}none is on the PATH",
        "Open the project in Android Studio, which brings its own; or build it with the SDK's "
        "tools:\n--set app.build=sdk",
    )
