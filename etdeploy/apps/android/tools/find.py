"""All that builds an app without Gradle, and what is absent of it."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from etdeploy.apps.android.tools.jdk import Jdk, find_jdk
from etdeploy.apps.android.tools.kotlin import Kotlin, find_kotlin
from etdeploy.apps.android.tools.libraries import Library, find_libraries
from etdeploy.apps.android.tools.sdk import Sdk, find_sdk
from etdeploy.backends.values import Workstation
from etdeploy.core.errors import Blocker, BuildError
from etdeploy.core.finding import Finding

_APPS = "Android apps: etdeploy app android"
# What the templates are compiled against.
COMPILE_SDK = 36


@dataclass(frozen=True)
class Tools:
    """What builds an app without Gradle, and the libraries that it has."""

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
    """Everything, or what is absent."""
    jdk = find_jdk(station)
    sdk = find_sdk(station, compile_sdk, project)
    kotlin = find_kotlin(station)
    libraries, absent = find_libraries(station, coordinates, aar)
    if isinstance(jdk, Jdk) and isinstance(sdk, Sdk) and isinstance(kotlin, Kotlin) and not absent:
        return Tools(jdk, sdk, kotlin, libraries)
    return (*(each for each in (jdk, sdk, kotlin) if isinstance(each, Blocker)), *absent)


def require_tools(found: Tools | tuple[Blocker, ...]) -> Tools:
    """The tools."""
    if isinstance(found, Tools):
        return found
    reasons = list(dict.fromkeys(blocker.why for blocker in found))
    raise BuildError(
        "the app cannot be built: " + "; ".join(reasons),
        remedy="\n".join(dict.fromkeys(blocker.remedy for blocker in found)),
    )


def tool_findings(station: Workstation) -> Iterator[Finding]:
    """What `etdeploy doctor` shows of the tools for apps."""
    jdk, sdk = find_jdk(station), find_sdk(station, COMPILE_SDK)
    kotlin, gradle = find_kotlin(station), find_gradle(station)
    yield _finding("JDK", jdk, f"{jdk.version} in {jdk.path}" if isinstance(jdk, Jdk) else None)
    yield _finding(
        "Android SDK",
        sdk,
        f"build tools {sdk.build_tools.name} and {sdk.platform.name} in {sdk.path}"
        if isinstance(sdk, Sdk)
        else None,
    )
    yield _finding(
        "Kotlin",
        kotlin,
        f"{kotlin.version} in {kotlin.place}" if isinstance(kotlin, Kotlin) else None,
        f"{_APPS}, where it is built without Gradle",
    )
    yield _finding(
        "Gradle",
        gradle,
        None if isinstance(gradle, Blocker) else str(gradle),
        f"{_APPS}; not needed, the SDK's tools do it too",
    )


def _finding(name: str, result: object, found: str | None, needed_for: str = _APPS) -> Finding:
    lacks = isinstance(result, Blocker)
    return Finding(
        name=name,
        state="optional" if lacks else "ok",
        found=found,
        needed_for=needed_for,
        remedy=f"{result.why}\n{result.remedy}" if isinstance(result, Blocker) else None,
    )


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
    """The project's own wrapper, or else the one on the PATH."""
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
