"""Finds a Java development kit and an Android SDK. Files are read, nothing is started."""

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

_JDK = "Java development kit"
JAVA_HOME = "JAVA_HOME"
# What today's R8, the Android Gradle plugin and apksigner run on.
_OLDEST_JAVA = 17
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
    """A Java development kit: its folder, as JAVA_HOME names it, and its version."""

    path: Path
    version: str

    def program(self, name: str) -> Path:
        return self.path / "bin" / name


def find_jdk(station: Workstation) -> Jdk | Blocker:
    """The one that JAVA_HOME names, that of the PATH, or Android Studio's.

    The variable is the user's choice: if it names an unusable JDK, no other is used instead.
    """
    named = station.environ.get(JAVA_HOME)
    if named:
        found = _inspect(Path(named).expanduser(), f"{JAVA_HOME} names")
        return found if found else _no_jdk(f"{JAVA_HOME} names {named}, which does not exist")
    problems = []
    for path in _places(station):
        found = _inspect(path, "there is")
        if isinstance(found, Jdk):
            return found
        if found:
            problems.append(found)
    if problems:
        return problems[0]
    return _no_jdk(
        f"Java development kit not found: {JAVA_HOME} is not set, no javac is on the PATH, and "
        "Android Studio is not in its usual folders"
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
        return _no_jdk(f"{words} {path}, which is not a JDK") if JAVA_HOME in words else None
    if absent:
        why = f"{words} {path}, which has no bin/{absent[0]}: it is only a Java runtime"
        return _no_jdk(why)
    if release is None:
        return _no_jdk(f"{words} {path}, whose version cannot be read from its file `release`")
    version = release[1] + release[2]
    if int(release[1]) < _OLDEST_JAVA:
        return _no_jdk(
            f"{words} Java {version} in {path}, and the tools need {_OLDEST_JAVA} or newer"
        )
    return Jdk(path, version)


def _no_jdk(why: str) -> Blocker:
    return Blocker(_JDK, why, how_to_get_jdk())


def how_to_get_jdk() -> str:
    is_brew = system_command("x").startswith("brew")
    command = system_command("openjdk@17" if is_brew else "openjdk-17-jdk-headless")
    return (
        f"{command}\nor unpack any JDK from {_OLDEST_JAVA} on, and\nexport {JAVA_HOME}=/path/to/jdk"
    )


_SDK = "Android SDK"
SDK_VARIABLES = ("ANDROID_HOME", "ANDROID_SDK_ROOT")
# Where Android Studio puts it, on Linux and on a Mac. Debian's /usr/lib/android-sdk comes with adb,
# and has neither aapt2 nor R8.
_FOLDERS = ("~/Android/Sdk", "~/Library/Android/sdk")
_BUILD_TOOLS = ("aapt2", "lib/d8.jar", "lib/apksigner.jar")
# The first whose R8 reads what Kotlin 2 compiles, and whose aapt2 reads today's platforms.
_OLDEST_TOOLS = 34
_RECOMMENDED = "36.0.0"
_PROPERTY = re.compile(r"^\s*sdk\.dir\s*[=:]\s*(.+?)\s*$", re.MULTILINE)
_TOOLS_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)")
_PLATFORM = re.compile(r"android-(\d+)(\.\d+)?")


@dataclass(frozen=True)
class Sdk:
    """An Android SDK; the folder of its build tools has their version as name."""

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

    A named folder is the user's choice: if it does not exist, no other is used instead.
    """
    for words, path in _named(station, project):
        if path.is_dir():
            return path
        return Blocker(_SDK, f"{words} {path}, which is not a folder", how_to_get_sdk())
    for place in _FOLDERS:
        path = station.home / place.removeprefix("~/")
        if path.is_dir():
            return path
    why = (
        f"Android SDK not found: {' and '.join(SDK_VARIABLES)} are not set, and there is "
        f"none in {', '.join(_FOLDERS)}"
    )
    return Blocker(_SDK, why, how_to_get_sdk())


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


def how_to_get_sdk() -> str:
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
    for variable in SDK_VARIABLES:
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
    whole = [(v, path) for v, path in versions if all((path / t).is_file() for t in _BUILD_TOOLS)]
    remedy = _sdkmanager(folder, f"build-tools;{_RECOMMENDED}")
    if not whole:
        why = f"the SDK in {folder} has no build tools"
        if versions:
            absent = next(t for t in _BUILD_TOOLS if not (versions[-1][1] / t).is_file())
            why = f"{versions[-1][1]} is incomplete: {absent} is missing"
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
