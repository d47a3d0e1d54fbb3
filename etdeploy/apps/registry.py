"""Each platform by the system of its targets."""

from __future__ import annotations

from etdeploy.apps.platform import Platform
from etdeploy.core.errors import UsageError


def platform_for(system: str) -> Platform:
    """Return the platform of a target's system; raise UsageError where there are no apps."""
    if system == "android":
        from etdeploy.apps.android.platform import Android

        return Android()
    if system == "ios":
        from etdeploy.apps.ios.platform import Ios

        return Ios()
    raise UsageError(f"there are no apps for {system}", remedy="Apps are made for android and ios.")
