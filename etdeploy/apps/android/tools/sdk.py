"""Finds an Android SDK, its tools and a platform. Files are read, nothing is started."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from etdeploy.backends.values import Workstation
from etdeploy.core.errors import Blocker
from etdeploy.core.files.basic import read_text

NAME = "Android SDK"
VARIABLES = ("ANDROID_HOME", "ANDROID_SDK_ROOT")
# Where Android Studio puts it, on Linux and on a Mac. Debian's /usr/lib/android-sdk comes with adb,
# and has neither aapt2 nor R8.
_FOLDERS = ("~/Android/Sdk", "~/Library/Android/sdk")
_TOOLS = ("aapt2", "lib/d8.jar", "lib/apksigner.jar")
# The first whose R8 reads what Kotlin 2 compiles, and whose aapt2 reads today's platforms.
_OLDEST_TOOLS = 34
_RECOMMENDED = "36.0.0"
_PROPERTY = re.compile(r"^\s*sdk\.dir\s*[=:]\s*(.+?)\s*$", re.MULTILINE)
_TOOLS_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)")
_PLATFORM = re.compile(r"android-(\d+)(\.\d+)?")


@dataclass(frozen=True)
class Sdk:
    """An Android SDK.

    Attributes:
        path: Its folder.
        build_tools: The folder of the build tools, whose name is their version.
        platform: The folder of the platform, with android.jar.
    """

    path: Path
    build_tools: Path
    platform: Path

    @property
    def aapt2(self) -> Path:
        return self.build_tools / "aapt2"

    @property
    def r8(self) -> Path:
        """The jar with R8 and D8."""
        return self.build_tools / "lib/d8.jar"

    @property
    def apksigner(self) -> Path:
        """The jar of apksigner."""
        return self.build_tools / "lib/apksigner.jar"

    @property
    def android_jar(self) -> Path:
        return self.platform / "android.jar"


def find_sdk_folder(station: Workstation, project: Path | None = None) -> Path | Blocker:
    """The SDK that the project or a variable names, or else that in a usual place.

    What is named is the user's choice: if it is no folder, that is reported and no other is used
    instead.
    """
    for words, path in _named(station, project):
        if path.is_dir():
            return path
        return Blocker(NAME, f"{words} {path}, which is not a folder", how_to_get())
    for place in _FOLDERS:
        path = station.home / place.removeprefix("~/")
        if path.is_dir():
            return path
    why = (
        f"no Android SDK was found: {' and '.join(VARIABLES)} are not set, and there is none in "
        f"{', '.join(_FOLDERS)}"
    )
    return Blocker(NAME, why, how_to_get())


def find_sdk(station: Workstation, compile_sdk: int, project: Path | None = None) -> Sdk | Blocker:
    """The SDK with its newest build tools and the platform of an API level, or a newer one."""
    folder = find_sdk_folder(station, project)
    if isinstance(folder, Blocker):
        return folder
    tools = _build_tools(folder)
    if isinstance(tools, Blocker):
        return tools
    levels = dict(_platforms(folder))
    wanted = min((level for level in levels if level >= compile_sdk), default=None)
    if wanted is None:
        known = ", ".join(f"android-{level}" for level in sorted(levels)) or "none"
        why = (
            f"the SDK in {folder} has no platform for API level {compile_sdk}, which the app is "
            f"compiled against; it has {known}"
        )
        return Blocker(
            "Android platform", why, _sdkmanager(folder, f"platforms;android-{compile_sdk}")
        )
    return Sdk(folder, tools, levels[wanted])


def how_to_get() -> str:
    """How to get an SDK."""
    return (
        "Install Android Studio, or unpack Google's command line tools for Android\n"
        "(https://developer.android.com/studio#command-line-tools-only) and\n"
        "export ANDROID_HOME=$HOME/Android/Sdk\n"
        f"sdkmanager --sdk_root=$ANDROID_HOME 'build-tools;{_RECOMMENDED}' 'platforms;android-36'"
    )


def _named(station: Workstation, project: Path | None) -> Iterator[tuple[str, Path]]:
    if project:
        properties = project / "local.properties"
        named = _PROPERTY.search(read_text(properties))
        if named:
            # Android Studio escapes colons and backslashes there.
            yield f"{properties} names", Path(re.sub(r"\\(.)", r"\1", named[1]))
    for variable in VARIABLES:
        value = station.environ.get(variable)
        if value:
            yield f"{variable} names", Path(value).expanduser()


def _build_tools(folder: Path) -> Path | Blocker:
    """The newest build tools that are whole."""
    versions = sorted(
        (tuple(map(int, found.groups())), path)
        for path in (folder / "build-tools").glob("*")
        if (found := _TOOLS_VERSION.fullmatch(path.name))
    )
    whole = [(v, path) for v, path in versions if all((path / t).is_file() for t in _TOOLS)]
    remedy = _sdkmanager(folder, f"build-tools;{_RECOMMENDED}")
    if not whole:
        why = f"the SDK in {folder} has no build tools"
        if versions:
            absent = next(t for t in _TOOLS if not (versions[-1][1] / t).is_file())
            why = f"{versions[-1][1]} is incomplete: there is no {absent}"
        return Blocker("Android build tools", why, remedy)
    version, newest = whole[-1]
    if version[0] < _OLDEST_TOOLS:
        why = f"{newest} is too old: the app needs build tools from {_OLDEST_TOOLS}.0.0 on"
        return Blocker("Android build tools", why, remedy)
    return newest


def _platforms(folder: Path) -> Iterator[tuple[int, Path]]:
    """Released platforms by API level; of several with the same, the newest."""
    for path in sorted((folder / "platforms").glob("android-*")):
        found = _PLATFORM.fullmatch(path.name)
        if found and (path / "android.jar").is_file():
            yield int(found[1]), path


def _sdkmanager(folder: Path, package: str) -> str:
    return f"sdkmanager --sdk_root={folder} '{package}'"
