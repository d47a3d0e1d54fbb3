"""The part of a toolchain that depends on the target alone and is equal on every machine."""

from __future__ import annotations

from etdeploy.core.errors import Blocker
from etdeploy.core.values import Explained
from etdeploy.targets import ndk, platforms
from etdeploy.targets.platforms import ANDROID_ABIS, Target

MUSL = "linux-aarch64-musl"
_ABI = {target: abi for abi, target in ANDROID_ABIS.items()}


def plan_toolchain(target: Target, host: Target) -> Explained | None:
    """The toolchain file, in terms that hold on every machine; None for a native build."""
    if target.system == "android":
        value = f"<NDK>/{ndk.TOOLCHAIN_FILE}"
        reason = "the NDK's own toolchain file"
    elif target.system in ("ios", "macos"):
        value = f"<checkout>/{platforms.TOOLCHAIN_FILE}"
        reason = "ExecuTorch builds for Apple's systems with ios-cmake, a part of the checkout"
    elif target.name == host.name or target.toolchain is None:
        return None
    else:
        value = target.toolchain
        with_ = "zig (PyPI: ziglang)" if target.name == MUSL else target.compiler
        reason = f"{host.name} builds for {target.name} with {with_}"
    return Explained(name="toolchain", value=value, reason=reason)


def plan_definitions(target: Target, android_api: int) -> tuple[Explained, ...]:
    """The definitions that the toolchain file reads; they depend on the target alone.

    Args:
        target: What is built for.
        android_api: The recipe's `runtime.android_api`; used for Android only.
    """
    if target.system == "android":
        return ndk.android_definitions(_ABI[target.name], android_api)
    if target.system in ("ios", "macos"):
        return platforms.apple_definitions(target.name)
    return ()


def host_blocker(target: Target, host: Target) -> Blocker | None:
    """Why such a host can never build for the target, whatever is installed; None if it can."""
    if target.system in ("ios", "macos") and host.system != "macos":
        return Blocker(
            what=f"target {target.name}",
            why=f"{target.name} cannot be built on {host.name}: Apple's compiler and SDK exist on "
            "Macs only",
            remedy="Run etdeploy on a Mac.",
        )
    if target.system == "android" and (host.system, host.arch) == ("linux", "aarch64"):
        return Blocker(
            what=f"target {target.name}",
            why="Google publishes no NDK whose compiler runs on 64-bit Arm Linux",
            remedy="Run etdeploy on x86_64 or a Mac, or use the static runner, which also runs on "
            f"Android: --target {MUSL}",
        )
    return None
