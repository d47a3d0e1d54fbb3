"""Whether an app can be in front: the screen is on, and no lock screen covers it.

What the services trust, window and power print, on Android 6 to 16.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass

from etdeploy.core.errors import DeviceError
from etdeploy.devices.android.facts import parse_screen
from etdeploy.devices.remote.shell import RemoteShell
from etdeploy.devices.shell import sections

_DOING = "looking whether its screen is on and unlocked"
# `dumpsys` waits up to 10 s for each service that hangs.
_DUMPSYS_S = 35.0
# Screens come on and lock screens go away with an animation.
_ATTEMPTS = 8
_PAUSE_S = 0.4
_ON = "Turn its screen on by hand, unlock it, and run the same command again."
_AWAKE = (
    "Settings > Developer options > `Stay awake` keeps the screen on while the phone is plugged in."
)

SCREEN_COMMAND = "; ".join(
    (
        "echo '#power'; dumpsys power | grep -E 'mWakefulness=|Display Power: state='",
        "echo '#trust'; dumpsys trust 2>/dev/null | grep -F '(current)'",
        "echo '#policy'; dumpsys window policy 2>/dev/null |"
        " grep -E '^ *(showing|secure|mIsShowing)=|mShowingLockscreen=|isStatusBarKeyguard='",
        "true",
    )
)
WAKE_COMMAND = "input keyevent KEYCODE_WAKEUP"
# The second is the menu key, which removes a lock screen without a code on Android 6.
DISMISS_COMMAND = "wm dismiss-keyguard 2>/dev/null || input keyevent 82"


@dataclass(frozen=True)
class Screen:
    """The screen's state; None for what the device does not report.

    Attributes:
        is_on: Whether it is on.
        is_covered: Whether a lock screen is shown.
        is_locked: Whether a code, a pattern or a finger has to unlock it.
    """

    is_on: bool | None
    is_covered: bool | None
    is_locked: bool | None


def parse_state(output: str) -> Screen:
    """Reads what SCREEN_COMMAND printed."""
    parts = sections(output)
    policy = parts.get("policy", "")
    # Android 7 and newer, a part of the same for makers that leave the first out, and Android 6.
    covered = _first(policy, r"^\s*showing=(\w+)", r"^\s*mIsShowing=(\w+)",
                     r"\bmShowingLockscreen=(\w+)", r"\bisStatusBarKeyguard=(\w+)")  # fmt: skip
    # Of the user in front only: a work profile has a lock of its own.
    locked = re.search(r"\(current\).*?\bdeviceLocked=(\d)", parts.get("trust", ""))
    if locked:
        is_locked: bool | None = locked[1] == "1"
    else:
        secure = _first(policy, r"^\s*secure=(\w+)")
        is_locked = None if covered is None or secure is None else covered and secure
    return Screen(parse_screen(parts.get("power", "")), covered, is_locked)


def _first(text: str, *patterns: str) -> bool | None:
    for pattern in patterns:
        if found := re.search(pattern, text, re.MULTILINE):
            return found[1] == "true"
    return None


def prepare_screen(shell: RemoteShell) -> None:
    """Turns the screen on, and removes a lock screen that needs no code.

    Raises:
        DeviceError: The phone is locked, its screen stays off, or the device went away.
    """
    screen = _read(shell)
    if not screen.is_on:
        shell.shell(WAKE_COMMAND, "turning its screen on")
        screen = _awaited(shell, lambda screen: screen.is_on is not False)
    if screen.is_on is False:
        raise DeviceError("the phone's screen stays off", place=shell.name, remedy=_ON)
    if screen.is_locked:
        raise locked(shell.name)
    if not screen.is_covered:
        return
    shell.shell(DISMISS_COMMAND, "removing its lock screen")
    screen = _awaited(shell, lambda screen: not screen.is_covered)
    if screen.is_locked:
        raise locked(shell.name)
    if screen.is_covered:
        raise DeviceError("the phone's lock screen does not go away", place=shell.name, remedy=_ON)


def locked(device: str) -> DeviceError:
    """The error for a phone that has to be unlocked by its owner."""
    return DeviceError(
        "the phone is locked, so that no app can be in front",
        place=device,
        remedy=f"Unlock it, and run the same command again. {_AWAKE}",
    )


def _read(shell: RemoteShell) -> Screen:
    return parse_state(shell.shell(SCREEN_COMMAND, _DOING, _DUMPSYS_S).output)


def _awaited(shell: RemoteShell, is_reached: Callable[[Screen], bool]) -> Screen:
    screen = _read(shell)
    for _ in range(_ATTEMPTS):
        if is_reached(screen):
            break
        time.sleep(_PAUSE_S)
        screen = _read(shell)
    return screen
