"""How ExecuTorch is built for Apple's systems: its own ios-cmake, on a Mac."""

from __future__ import annotations

from etdeploy.core.values import Explained

# A submodule of ExecuTorch, in the checkout.
TOOLCHAIN_FILE = "third-party/ios-cmake/ios.toolchain.cmake"
SUBMODULE = "third-party/ios-cmake"

# Platform (as ios-cmake names it) and oldest system version, from ExecuTorch's own presets
# `ios`, `ios-simulator` and `macos` (CMakePresets.json; equal in 1.3, 1.4 and 1.5).
_PLATFORMS = {
    "ios-arm64": ("OS64", "17.0"),
    "ios-simulator": ("SIMULATORARM64", "17.0"),
    "macos-arm64": ("MAC_ARM64", "12.0"),
}


def apple_definitions(target: str) -> tuple[Explained, ...]:
    """Definitions for ios-cmake.

    Args:
        target: ios-arm64, ios-simulator or macos-arm64.
    """
    platform, oldest = _PLATFORMS[target]
    return (
        Explained(name="PLATFORM", value=platform, reason=f"{target}, as ios-cmake names it"),
        Explained(
            name="DEPLOYMENT_TARGET",
            value=oldest,
            reason="the oldest system that ExecuTorch's own preset builds for",
        ),
        Explained(
            name="CMAKE_MACOSX_BUNDLE",
            value="OFF",
            reason="the runner is a plain program; ios-cmake would build an app by default",
        ),
    )
