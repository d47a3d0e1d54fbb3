"""Builds the APK of a project with Gradle, as Android Studio does."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

from etdeploy.apps.android.apk import described
from etdeploy.apps.android.app import AndroidApp, BuiltApk, require_room, require_valid
from etdeploy.apps.android.parts.verify import require_sound
from etdeploy.apps.android.tools.gradle import NAME, WRAPPER
from etdeploy.apps.android.tools.jdk import Jdk
from etdeploy.core.errors import BuildError
from etdeploy.core.processes import process
from etdeploy.core.progress import Progress, silent

OUTPUT = "app/build/outputs/apk/debug/app-debug.apk"
_TASK = ":app:assembleDebug"
_STEP = re.compile(r"> Task (:\S+)")
# What Gradle says below "What went wrong".
_WRONG = re.compile(r"\* What went wrong:\n(.*?)(?:\n\n|\n\* |\Z)", re.DOTALL)
_COMPILER = re.compile(r"^(?:e: |error: |ERROR:).*", re.MULTILINE)
_LINES = 6
# Messages of Gradle and its plugin, and what mends what they tell.
_REMEDIES = (
    (
        re.compile(r"SDK location not found|ANDROID_HOME"),
        "Install Android Studio, and\nexport ANDROID_HOME=$HOME/Android/Sdk",
    ),
    (
        re.compile(r"Could not (?:resolve|GET|download)|UnknownHostException|No route to host"),
        "Gradle fetches its plugins and libraries: check the network, or build the app with the "
        "SDK's\ntools, which fetch nothing: --set app.build=sdk",
    ),
    (
        re.compile(r"requires (?:Gradle|Java)|Minimum supported Gradle|Unsupported class file"),
        "Use Android Studio's own Gradle and JDK, or build the app with the SDK's tools:\n"
        "--set app.build=sdk",
    ),
)


def gradle_command(gradle: Path, project: Path) -> tuple[str, ...]:
    """The command that builds the app, as a person types it in the project's folder.

    Args:
        gradle: The project's wrapper, or a program of the PATH.
        project: The project's folder.
    """
    program = f"./{WRAPPER}" if gradle == project / WRAPPER else str(gradle)
    return (program, _TASK, "--console=plain")


def build_with_gradle(
    project: Path,
    gradle: Path,
    app: AndroidApp,
    progress: Progress = silent,
    *,
    jdk: Jdk | None = None,
    log: Path | None = None,
) -> BuiltApk:
    """Builds the APK; Gradle itself knows what has changed.

    Args:
        project: The generated project.
        gradle: The project's wrapper, or a program of the PATH.
        app: The app.
        progress: Reports each task of Gradle.
        jdk: What Gradle runs on; its own choice when None.
        log: Receives the command and its output.

    Raises:
        BuildError: Gradle failed, with what it says went wrong.
    """
    require_valid(app)
    require_room(project)
    progress("building the app with Gradle")

    def report(line: str) -> None:
        step = _STEP.match(line)
        if step:
            progress(f"Gradle: {step[1]}")

    request = process.Request(
        gradle_command(gradle, project),
        cwd=project,
        env={"JAVA_HOME": str(jdk.path)} if jdk else {},
        log=log,
        on_line=report,
    )
    try:
        outcome = process.run(request)
    except OSError as error:
        raise BuildError(f"{NAME} cannot be started: {gradle}: {error.strerror}") from error
    if not outcome.ok:
        raise _failure(outcome.stdout, log)
    return _result(project / OUTPUT, log)


def _result(apk: Path, log: Path | None) -> BuiltApk:
    try:
        require_sound(apk)
        return described(apk, "gradle")
    except (OSError, zipfile.BadZipFile) as error:
        raise BuildError(
            f"Gradle wrote no APK where one is expected: {error}",
            place=str(apk),
            remedy="Keep the module `app` and its build type `debug` in the project.",
            log=log,
        ) from error


def _failure(output: str, log: Path | None) -> BuildError:
    told = _COMPILER.findall(output)[:_LINES]
    wrong = _WRONG.search(output)
    if wrong:
        told += [line.strip() for line in wrong[1].splitlines() if line.strip()][:_LINES]
    remedy = next((text for words, text in _REMEDIES if words.search(output)), None)
    message = "\n".join(["Gradle could not build the app:", *(told or output.splitlines()[-1:])])
    return BuildError(message, remedy=remedy, log=log)
