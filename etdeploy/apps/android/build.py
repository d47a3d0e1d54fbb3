"""Builds the APK of a project, with Gradle or with the SDK's tools."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from etdeploy.apps.android.apk import build_apk
from etdeploy.apps.android.app import AndroidApp, BuiltApk
from etdeploy.apps.android.gradle import build_with_gradle
from etdeploy.apps.android.tools.find import find_tools, require_tools
from etdeploy.apps.android.tools.gradle import find_gradle
from etdeploy.apps.android.tools.jdk import Jdk, find_jdk
from etdeploy.backends.values import Workstation
from etdeploy.core.blocker import Blocker, require
from etdeploy.core.progress import Progress, silent
from etdeploy.core.values import Explained

BuildWish = Literal["auto", "gradle", "sdk"]


def choose_build(
    wish: BuildWish, station: Workstation, project: Path | None, aar: Path | None = None
) -> tuple[Explained, Path | None]:
    """What builds the app, with the reason; and the Gradle, where it is that.

    Args:
        wish: `app.build` of the recipe.
        station: This machine.
        project: Its own wrapper comes first; None where there is no project yet.
        aar: `app.aar` of the recipe, which only the SDK's tools take.

    Raises:
        BuildError: Gradle is asked for, and there is none that does.
    """
    if wish == "sdk":
        return _chosen("sdk", "app.build is sdk"), None
    found = find_gradle(station, project)
    if wish == "gradle":
        return _chosen("gradle", "app.build is gradle"), require(found)
    if aar:
        return _chosen("sdk", f"app.aar names {aar}, which the project's build files do not"), None
    if isinstance(found, Blocker):
        return _chosen("sdk", found.why), None
    return _chosen("gradle", f"there is {found}"), found


def build_app(
    project: Path,
    work: Path,
    app: AndroidApp,
    artifacts: Sequence[str],
    wish: BuildWish = "auto",
    progress: Progress = silent,
    *,
    station: Workstation | None = None,
    aar: Path | None = None,
    log: Path | None = None,
) -> BuiltApk:
    """Builds the APK; what did not change since the last time is not made again.

    Args:
        project: The generated project.
        work: A folder for this project alone, which stays.
        app: The app.
        artifacts: Of ExecuTorch's library, from `choose_runtime`.
        wish: `app.build` of the recipe.
        progress: Reports each stage.
        station: This machine.
        aar: A file in place of ExecuTorch's library.
        log: Receives all commands and their output.

    Raises:
        BuildError: Something is absent, or a tool failed.
    """
    here = station or Workstation.this()
    _, gradle = choose_build(wish, here, project, aar)
    if gradle:
        jdk = find_jdk(here)
        return build_with_gradle(
            project, gradle, app, progress, jdk=jdk if isinstance(jdk, Jdk) else None, log=log
        )
    tools = require_tools(
        find_tools(here, artifacts, compile_sdk=app.compile_sdk, project=project, aar=aar)
    )
    return build_apk(project, work, tools, app, progress, station=here, log=log)


def _chosen(value: str, reason: str) -> Explained:
    return Explained(name="app.build", value=value, reason=reason)
