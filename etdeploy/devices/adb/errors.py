"""Errors of the connection to an Android device, distinguished by what adb answers."""

from __future__ import annotations

from pathlib import Path


class AdbError(Exception):
    """The connection to the device failed; the message is for the user."""


class AdbGoneError(AdbError):
    """The connection ended prematurely."""


class AdbDroppedError(AdbGoneError):
    """The connection ended before the device answered anything."""


class AdbTimeoutError(AdbError):
    """Nothing was sent or received for too long."""


class AdbRefusedError(AdbError):
    """The device refused; the message is what it said."""


class AdbServerError(AdbError):
    """The adb server itself ended, hangs, or does not answer like one."""


class AdbStateError(AdbError):
    """The device is known and cannot be used.

    Args:
        state: As `adb devices` names it; None for a device that is no longer connected.
    """

    def __init__(self, state: str | None) -> None:
        super().__init__(f"its state is {state}" if state else "it is not connected any more")
        self.state = state


class AdbUnreachableError(AdbError):
    """Nothing has ever answered at the device's address."""


class AdbBusyError(AdbError):
    """Another program holds the device's USB interface."""


class AdbTlsError(AdbError):
    """The device requires an encrypted connection, which only the adb program speaks."""


class AdbKeyError(AdbError):
    """This computer's key cannot be used.

    Args:
        path: The key's file.
        why: What is wrong with it.
        broken: Whether the file holds something else; if not, it cannot be read or created.
    """

    def __init__(self, path: Path, why: str, broken: bool) -> None:
        super().__init__(why)
        self.path = path
        self.broken = broken
