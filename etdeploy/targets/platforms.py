"""Targets: what a runner is built for."""

from __future__ import annotations

import os
import platform
import re
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from etdeploy.core.errors import UsageError
from etdeploy.core.hashing import stat_signature
from etdeploy.core.processes import process
from etdeploy.core.values import ReasonedChoice


@dataclass(frozen=True)
class Target:
    """A platform that a runner can be built for.

    Attributes:
        name: As on the command line and in the plan.
        system: linux, android, macos or ios.
        arch: The instruction set: x86_64 or aarch64.
        wheel_platform: Tag of the ExecuTorch wheel with C++ libraries for it, if any.
        portable: The Linux target whose runner also runs there, if deployed with the C library
            that it was linked against.
        toolchain: File in toolchains/ for building on another platform.
        compiler: The C++ compiler for such a build.
        static: Whether the runner is one file that uses no system library; every Linux kernel of
            that instruction set runs it.
    """

    name: str
    system: str
    arch: str
    wheel_platform: str | None = None
    portable: str | None = None
    toolchain: str | None = None
    compiler: str | None = None
    static: bool = False


TARGETS: dict[str, Target] = {
    t.name: t
    for t in (
        Target(
            "linux-x86_64",
            "linux",
            "x86_64",
            wheel_platform="manylinux_2_28_x86_64",
            toolchain="linux-x86_64.cmake",
            compiler="x86_64-linux-gnu-g++",
        ),
        Target(
            "linux-aarch64",
            "linux",
            "aarch64",
            wheel_platform="manylinux_2_28_aarch64",
            toolchain="linux-aarch64.cmake",
            compiler="aarch64-linux-gnu-g++",
        ),
        # After linux-aarch64, the host target of a 64-bit Arm machine.
        Target(
            "linux-aarch64-musl",
            "linux",
            "aarch64",
            toolchain="linux-aarch64-musl.cmake",
            static=True,
            compiler="aarch64-linux-musl-clang++",
        ),
        # For Linux with an older C library, another one, or none for programs of 64 bits.
        Target("linux-x86_64-portable", "linux", "x86_64", portable="linux-x86_64"),
        Target("linux-aarch64-portable", "linux", "aarch64", portable="linux-aarch64"),
        Target("android-arm64", "android", "aarch64", portable="linux-aarch64"),
        Target("android-x86_64", "android", "x86_64", portable="linux-x86_64"),
        Target("macos-arm64", "macos", "aarch64", wheel_platform="macosx_14_0_arm64"),
        Target("ios-arm64", "ios", "aarch64"),
        Target("ios-simulator", "ios", "aarch64"),
    )
}

# `ro.product.cpu.abi` of Android, by the NDK's ABI names.
ANDROID_ABIS: dict[str, str] = {"arm64-v8a": "android-arm64", "x86_64": "android-x86_64"}


def find_target(name: str) -> Target:
    """The target of that name."""
    try:
        return TARGETS[name]
    except KeyError:
        raise UsageError(
            f"there is no target {name!r}", remedy=f"Choose one of: {', '.join(TARGETS)}"
        ) from None


def host_target() -> Target:
    """The target of this machine."""
    arch = {"amd64": "x86_64", "arm64": "aarch64"}.get(
        platform.machine().lower(), platform.machine()
    )
    system = {"linux": "linux", "darwin": "macos"}.get(sys.platform, sys.platform)
    for target in TARGETS.values():
        if target.system == system and target.arch == arch:
            return target
    raise UsageError(
        f"etdeploy does not run on {system} {arch}",
        remedy="Use Linux x86_64, Linux aarch64 or macOS on Apple silicon.",
    )


# A submodule of ExecuTorch, in the checkout.
APPLE_TOOLCHAIN_FILE = "third-party/ios-cmake/ios.toolchain.cmake"
APPLE_SUBMODULE = "third-party/ios-cmake"

# Platform (as ios-cmake names it) and oldest system version, from ExecuTorch's own presets
# `ios`, `ios-simulator` and `macos` (CMakePresets.json; equal in 1.3, 1.4 and 1.5).
_PLATFORMS = {
    "ios-arm64": ("OS64", "17.0"),
    "ios-simulator": ("SIMULATORARM64", "17.0"),
    "macos-arm64": ("MAC_ARM64", "12.0"),
}


def apple_definitions(target: str) -> tuple[ReasonedChoice, ...]:
    """Definitions for ios-cmake."""
    platform, oldest = _PLATFORMS[target]
    return (
        ReasonedChoice(name="PLATFORM", value=platform, reason=f"{target}, as ios-cmake names it"),
        ReasonedChoice(
            name="DEPLOYMENT_TARGET",
            value=oldest,
            reason="the oldest system that ExecuTorch's own preset builds for",
        ),
        ReasonedChoice(
            name="CMAKE_MACOSX_BUNDLE",
            value="OFF",
            reason="the runner is a plain program; ios-cmake would build an app by default",
        ),
    )


CPU_VARIABLE = "QEMU_CPU"
"""qemu's own variable: a processor and its features, for instance `cortex-a76` or `max,sve=off`."""


def find_emulator(arch: str) -> Path | None:
    """The emulator for programs of an architecture; the static one if both are installed."""
    names = (f"qemu-{arch}-static", f"qemu-{arch}")
    return next((found for name in names if (found := process.which(name))), None)


def qemu_cpu() -> str | None:
    """The processor that the user chose; None leaves it to qemu or to us."""
    return os.environ.get(CPU_VARIABLE) or None


def emulator_version(program: Path) -> str | None:
    """The version that the emulator reports; None if it reports none."""
    return _version(program, stat_signature(program))


@lru_cache(maxsize=8)
def _version(program: Path, stamp: tuple[int, ...]) -> str | None:  # noqa: ARG001 - part of the key
    try:
        outcome = process.run(process.Request((str(program), "--version"), timeout_s=20))
    except OSError:
        return None
    found = re.search(r"version (\S+)", outcome.stdout)
    return found[1] if found else None


def emulator_identity(arch: str) -> tuple[str, ...] | None:
    """Changes with the emulator and the emulated processor; no process is started."""
    program = find_emulator(arch)
    if program is None:
        return None
    return str(program), *map(str, stat_signature(program)), qemu_cpu() or ""


_SEGMENT = re.compile(r"[a-zA-Z][a-zA-Z0-9_]*")
_LONGEST = 150
# The id is also the package of the app's code, which these words cannot be a part of.
_RESERVED = """
abstract as assert boolean break byte case catch char class const continue default do double else
enum extends false final finally float for fun goto if implements import in instanceof int interface
is long native new null object package private protected public return short static strictfp super
switch synchronized this throw throws transient true try typealias typeof val var void volatile when
while
"""
_WORDS = frozenset(_RESERVED.split())
# Folders that Windows cannot have.
_DEVICES = frozenset(
    ["aux", "con", "nul", "prn", *(f"{port}{n}" for port in ("com", "lpt") for n in range(1, 10))]
)
# Packages of an app's libraries and of the system: on file systems that ignore case, the app's
# classes would be in the same folders, and Android's plugin refuses a namespace that it has twice.
_LIBRARY_PACKAGES = ("org.pytorch.executorch", "com.facebook.jni", "com.facebook.soloader")
_SYSTEM_PACKAGES = ("android", "androidx", "dalvik", "java", "javax", "kotlin", "kotlinx")


def android_id_problem(app_id: str) -> str | None:
    """What is wrong with an application id, as a clause; None if nothing is.

    Sources: "Configure the app module" of Android's documentation, and the keywords of Java and
    Kotlin.
    """
    segments = app_id.split(".")
    if len(segments) < 2:
        return "it has no dot: an id has two parts or more, like org.example.model"
    if len(app_id) > _LONGEST:
        return f"it has {len(app_id)} characters, and {_LONGEST} are the most that file names bear"
    for segment in segments:
        if not _SEGMENT.fullmatch(segment):
            return (
                f"{segment!r} is no part of an id: each begins with a letter from a to z and has "
                "only letters, digits and underscores"
            )
        if segment in _WORDS:
            return f"{segment!r} is a word of Java or Kotlin, so no package can be called so"
        if segment.lower() in _DEVICES:
            return f"{segment!r} is a device's name on Windows, so no folder can be called so"
    for package in (*_LIBRARY_PACKAGES, *_SYSTEM_PACKAGES):
        if f"{app_id.lower()}.".startswith(f"{package}."):
            return (
                f"the package {package} is not the app's own, also in other letter case; begin "
                "with a domain of yours, like com.example.model"
            )
    return None


def suggested_segment(text: str) -> str:
    """A part of an id that is like a text: `resnet_50` for `ResNet-50`; `app` where none is."""
    words = "_".join(re.findall(r"[a-z0-9]+", text.lower()))
    if not words:
        return "app"
    return f"app_{words}" if words in _WORDS | _DEVICES or not words[0].isalpha() else words
