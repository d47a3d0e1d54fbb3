"""Finds and checks an Android NDK. Files are read, nothing is started."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from etdeploy.core.commands import quoted
from etdeploy.core.errors import Blocker
from etdeploy.core.files.basic import read_text
from etdeploy.core.values import ReasonedChoice

VARIABLES = ("ANDROID_NDK", "ANDROID_NDK_HOME", "ANDROID_NDK_ROOT")
_SDK_VARIABLES = ("ANDROID_HOME", "ANDROID_SDK_ROOT")
# Where Android Studio puts the SDK, on Linux and on a Mac.
_SDK_FOLDERS = ("Android/Sdk", "Library/Android/sdk")
NAME = "Android NDK"
TOOLCHAIN_FILE = "build/cmake/android.toolchain.cmake"

RECOMMENDED = "28.2.13676358"
# Major versions that ExecuTorch 1.3 to 1.5 are said to build with: r26 in its Qualcomm and MediaTek
# guides, r27c in #8508, r28c in its Android guide. Newer ones are used if there is no other.
_OLDEST, _NEWEST_KNOWN = 26, 28
# Clang 11, part of r22, is the first that compiles for the extension.
_FIRST_WITH_BF16 = 22
_PAGE_BYTES = 16384


@dataclass(frozen=True)
class Ndk:
    """An NDK on this machine.

    Attributes:
        path: Its folder.
        version: As sdkmanager names it, for example 27.2.12479018.
        from_: Where it was found: a variable, or a folder of the SDK.
    """

    path: Path
    version: str
    from_: str

    @property
    def release(self) -> str:
        """The common name, r27c for 27.2."""
        return _release(self.version)

    @property
    def known(self) -> bool:
        """Whether ExecuTorch is known to build with it."""
        return _OLDEST <= _major(self.version) <= _NEWEST_KNOWN

    @property
    def toolchain_file(self) -> Path:
        return self.path / TOOLCHAIN_FILE

    def compiler(self, system: str) -> Path:
        """The C++ compiler that runs on a system; there is one for x86_64 only."""
        # On a Mac it is a universal binary, although its folder is named x86_64.
        tag = "darwin-x86_64" if system == "macos" else "linux-x86_64"
        return self.path / "toolchains/llvm/prebuilt" / tag / "bin/clang++"

    def compiler_version(self, system: str) -> str | None:
        """Clang's version, from the text file beside it."""
        about = self.compiler(system).parent.parent / "AndroidVersion.txt"
        lines = read_text(about).split("\n")
        return lines[0].strip() or None

    def newest_api(self) -> int | None:
        """The highest API level that it builds for; its toolchain rejects a higher one."""
        try:
            newest = json.loads(read_text(self.path / "meta/platforms.json"))["max"]
        except (ValueError, KeyError, TypeError):
            return None
        return newest if isinstance(newest, int) else None


def find_ndk(environ: Mapping[str, str], home: Path) -> Ndk | Blocker:
    """The NDK that a variable names, or else the best in the SDK's ndk/ folder.

    A variable is the user's choice: if it names no NDK, or one that is too old, that is reported
    and no other is used instead.
    """
    installed = sorted(_installed(environ, home), key=_preference)
    best = installed[-1] if installed else None
    for variable in VARIABLES:
        if environ.get(variable):
            found = _inspect(Path(environ[variable]).expanduser(), variable)
            problem = found if isinstance(found, Blocker) else _judge(found)
            return _with_other(problem, variable, best) if problem else found
    if best is None:
        return Blocker(NAME, _nothing(environ, home), install_command())
    return _judge(best) or best


def android_definitions(abi: str, api: int) -> tuple[ReasonedChoice, ...]:
    """Definitions for the NDK's own toolchain file, equal on every machine."""
    linker = f"-Wl,-z,max-page-size={_PAGE_BYTES}"
    pages = "Android 15 and newer may have pages of 16 KB: the NDK aligns for 4 KB before r28"
    return (
        ReasonedChoice(name="ANDROID_ABI", value=abi, reason="the target's instruction set"),
        ReasonedChoice(
            name="ANDROID_PLATFORM",
            value=f"android-{api}",
            reason=f"recipe: runtime.android_api {api} is the oldest Android that it runs on",
        ),
        ReasonedChoice(
            name="ANDROID_STL",
            value="c++_static",
            reason="the C++ runtime is linked in, so that libc++_shared.so need not be deployed",
        ),
        ReasonedChoice(name="ANDROID_SUPPORT_FLEXIBLE_PAGE_SIZES", value="ON", reason=pages),
        ReasonedChoice(name="CMAKE_EXE_LINKER_FLAGS", value=linker, reason=pages),
        ReasonedChoice(name="CMAKE_SHARED_LINKER_FLAGS", value=linker, reason=pages),
    )


def install_command(named_by: str = "") -> str:
    """How to get the recommended NDK."""
    return (
        (f"unset {named_by}\n" if named_by in VARIABLES else "")
        + f"sdkmanager 'ndk;{RECOMMENDED}'\n"
        f"or unpack Google's android-ndk-{_release(RECOMMENDED)} and\n"
        f"export ANDROID_NDK=/path/to/android-ndk-{_release(RECOMMENDED)}"
    )


def _inspect(path: Path, from_: str) -> Ndk | Blocker:
    """The NDK in a folder."""
    if not path.is_dir():
        why = f"{from_} names {path}, which is not a folder"
        return Blocker(NAME, why, install_command(from_))
    if not (path / TOOLCHAIN_FILE).is_file():
        inner = next(iter(sorted(path.glob(f"*/{TOOLCHAIN_FILE}"))), None)
        why = f"{from_} names {path}, which is not an NDK: it has no {TOOLCHAIN_FILE}"
        # The folder above, as with ANDROID_NDK=~/Android/Sdk/ndk.
        remedy = f"export {from_}={quoted(inner.parents[2])}" if inner else install_command(from_)
        return Blocker(NAME, why, remedy)
    found = re.search(r"^Pkg\.Revision\s*=\s*(\S+)", read_text(path / "source.properties"), re.M)
    if not found or not re.match(r"\d+\.\d+\.", found[1]):
        why = f"the version of the NDK in {path} cannot be read from its source.properties"
        return Blocker(NAME, why, install_command(from_))
    return Ndk(path, found[1], from_)


def _judge(ndk: Ndk) -> Blocker | None:
    """What is wrong with an NDK; None if nothing is."""
    major = _major(ndk.version)
    if major >= _OLDEST:
        return None
    reason = (
        "its clang cannot compile for bf16, which XNNPACK and the optimized kernels need (#8508)"
        if major < _FIRST_WITH_BF16
        else f"r{_OLDEST} is the oldest that ExecuTorch is known to build with"
    )
    why = f"{ndk.release} ({ndk.version}, from {ndk.from_}: {ndk.path}) is too old: {reason}"
    return Blocker(NAME, why, install_command(ndk.from_))


def _with_other(problem: Blocker, variable: str, other: Ndk | None) -> Blocker:
    """The same problem; if the SDK has a suitable NDK, the remedy is to use that."""
    if other is None or _judge(other):
        return problem
    return Blocker(problem.what, problem.why, f"export {variable}={quoted(other.path)}")


def _installed(environ: Mapping[str, str], home: Path) -> Iterator[Ndk]:
    """The NDKs that sdkmanager or Android Studio installed."""
    for sdk, from_ in _sdks(environ, home):
        try:
            folders = sorted((sdk / "ndk").iterdir())
        except OSError:
            continue
        for folder in folders:
            found = _inspect(folder, f"{from_}/ndk")
            if isinstance(found, Ndk):
                yield found


def _sdks(environ: Mapping[str, str], home: Path) -> Iterator[tuple[Path, str]]:
    for variable in _SDK_VARIABLES:
        if environ.get(variable):
            yield Path(environ[variable]).expanduser(), variable
    for folder in _SDK_FOLDERS:
        yield home / folder, f"~/{folder}"


def _preference(ndk: Ndk) -> tuple[bool, bool, tuple[int, ...]]:
    """Sort key: known ones are preferred, then releases to betas, then newer to older ones."""
    # Those that are too old are neither known nor newer than the known ones.
    numbers = tuple(int(n) for n in re.findall(r"\d+", ndk.version.split("-")[0]))
    return ndk.known, "-" not in ndk.version, numbers


def _nothing(environ: Mapping[str, str], home: Path) -> str:
    places = ", ".join(f"{from_}/ndk" for _, from_ in _sdks(environ, home))
    return f"none is named by {', '.join(VARIABLES)}, and there is none in {places}"


def _release(version: str) -> str:
    """r28 for 28.0, r28c for 28.2; a beta keeps its suffix."""
    major, minor, *_ = (int(n) for n in re.findall(r"\d+", version))
    beta = f"-{version.split('-', 1)[1]}" if "-" in version else ""
    return f"r{major}{chr(ord('a') + minor) if minor else ''}{beta}"


def _major(version: str) -> int:
    return int(version.split(".")[0])


# `ro.board.platform` of phones older than Android 12, which have no `ro.soc.model`.
_PLATFORMS = {
    "lahaina": "SM8350",
    "taro": "SM8450",
    "kalama": "SM8550",
    "pineapple": "SM8650",
    "sun": "SM8750",
    "canoe": "SM8850",
}


def soc_name(
    soc_model: str | None, board_platform: str | None, listed: Collection[str]
) -> str | None:
    """The part number of a phone's SoC, without the suffix of a variant.

    `SM8750P` and `SM8550-AC` are variants of SM8750 and SM8550, which no compiler lists.

    Args:
        soc_model: The property `ro.soc.model`.
        board_platform: The property `ro.board.platform`.
        listed: The part numbers that a backend compiles for.
    """
    if not soc_model or soc_model.lower() == "unknown":
        return _PLATFORMS.get(board_platform or "", board_platform or None)
    if soc_model.upper() in listed:
        return soc_model.upper()
    base = re.match(r"[A-Z]+\d+", soc_model.upper())
    return base.group() if base and base.group() in listed else soc_model
