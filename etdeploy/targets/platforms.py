"""Targets: what a runner is built for."""

from __future__ import annotations

import platform
import sys
from dataclasses import dataclass

from etdeploy.core.errors import UsageError


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
    """The target of that name.

    Raises:
        UsageError: There is none.
    """
    try:
        return TARGETS[name]
    except KeyError:
        raise UsageError(
            f"there is no target {name!r}", remedy=f"Choose one of: {', '.join(TARGETS)}"
        ) from None


def host_target() -> Target:
    """The target of this machine.

    Raises:
        UsageError: ExecuTorch has no libraries for it.
    """
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
