"""Errors of the connection to an Android device as a user can act on them: cause and remedy."""

from __future__ import annotations

from shlex import quote

from etdeploy.core.errors import DeviceError
from etdeploy.devices.adb.stream import (
    AdbBusyError,
    AdbError,
    AdbGoneError,
    AdbKeyError,
    AdbServerError,
    AdbStateError,
    AdbTimeoutError,
    AdbTlsError,
    AdbUnreachableError,
)

_GO_ON = "then run the same command again: what has arrived is kept."


def explained(error: AdbError, name: str, doing: str) -> DeviceError:
    """An error of the connection, with what usually causes it and what to do."""
    if isinstance(error, AdbStateError):
        return unusable(name, error.state)
    if isinstance(error, AdbKeyError):
        return _bad_key(error, name)
    if isinstance(error, AdbUnreachableError):
        return _unreachable(error, name)
    message, remedy = _told(error, name, doing)
    return DeviceError(message, place=name, remedy=remedy)


def _told(error: AdbError, name: str, doing: str) -> tuple[str, str]:
    if isinstance(error, AdbServerError):
        return f"{error}, while {doing}", "adb kill-server && adb start-server"
    if isinstance(error, AdbTlsError):
        return _NEEDS_TLS, _pairing(name)
    if isinstance(error, AdbBusyError):
        return (
            "another program holds the phone's USB interface",
            "Let the adb server have it:  adb start-server\n"
            "or end what holds it: Android Studio, scrcpy, another etdeploy.",
        )
    if isinstance(error, AdbTimeoutError):
        return (
            f"the device stopped answering while {doing} ({error})",
            "Look at its screen and cable, then run the same command again.",
        )
    if isinstance(error, AdbGoneError):
        return (
            f"the device went away while {doing} ({error})",
            "Check the cable or the network; `etdeploy devices` shows what can be reached.\n"
            f"{_GO_ON.capitalize()}",
        )
    return (
        f"the device failed while {doing}: {error}",
        "Run the same command again; if it fails again, restart the device.",
    )


_NEEDS_TLS = (
    "the device requires an encrypted connection (wireless debugging), "
    "which only the adb program speaks"
)


def _pairing(name: str) -> str:
    return (
        "Pair once, with the address and code from Settings > Developer options > Wireless\n"
        "debugging, then connect:\n"
        f"adb pair HOST:PAIRING_PORT && adb connect {quote(_serial(name))}"
    )


def unusable(name: str, state: str | None) -> DeviceError:
    """The error for a device that the adb server or libusb lists as one that cannot be used."""
    if state is None:
        return DeviceError(
            "the device is not connected any more",
            place=name,
            remedy=f"Plug it in again, or connect to it again (`etdeploy devices` shows it), "
            f"{_GO_ON}",
        )
    if state in ("unauthorized", "authorizing"):
        return _unauthorized(name)
    if state == "offline":
        return _offline(name)
    if state == "no permissions":
        return DeviceError(
            "this user has no permission to use the device's USB interface",
            place=name,
            remedy="sudo apt install android-sdk-platform-tools-common && "
            "sudo usermod -aG plugdev $USER\n"
            "Then log in again, and plug the phone in again.",
        )
    return DeviceError(
        f"the device cannot be used: its state is {state}",
        place=name,
        remedy="Wait until it has started, or start it again:\n"
        f"adb -s {quote(_serial(name))} reboot",
    )


def _unauthorized(name: str) -> DeviceError:
    return DeviceError(
        "the device does not allow USB debugging from this computer yet",
        place=name,
        remedy="Unlock the phone and confirm the prompt `Allow USB debugging?` on its screen,\n"
        "then run the same command again. If no prompt shows: Settings > Developer options >\n"
        "Revoke USB debugging authorizations, and plug the phone in again.",
    )


def _offline(name: str) -> DeviceError:
    serial = quote(_serial(name))
    again = f"adb disconnect {serial} && adb connect {serial}" if ":" in serial else "adb reconnect"
    return DeviceError(
        "the device is offline: the adb server knows it, but it does not answer",
        place=name,
        remedy=f"Wake the phone or plug it in again, or:\n{again}",
    )


def still_offline(name: str, said: str) -> DeviceError:
    """The error for a device on the network that reconnecting did not bring back."""
    return DeviceError(
        f"the device is offline, and the adb server could not reconnect to it: {said}",
        place=name,
        remedy="Wake the device, check that it is on the network and its debugger is on, then:\n"
        f"adb connect {quote(_serial(name))}",
    )


def _unreachable(error: AdbUnreachableError, name: str) -> DeviceError:
    port = _serial(name).rpartition(":")[2]
    return DeviceError(
        f"nothing answers at this address ({error})",
        place=name,
        remedy="Is the address right, and is the device on and on the same network? Its debugger\n"
        "must listen on that port. To make a phone on a cable listen:\n"
        f"adb tcpip {port if port.isdigit() else 5555}\n"
        "With wireless debugging: the port on its screen, after `adb pair` and `adb connect`.",
    )


def _bad_key(error: AdbKeyError, name: str) -> DeviceError:
    path, folder = quote(str(error.path)), quote(str(error.path.parent))
    remedy = f'sudo chown -R "$USER" {folder} && chmod -R u+rwX {folder}'
    if error.broken:
        remedy = (
            f"Move it away; a new one is made, and the phone asks once more:\n"
            f"mv {path} {quote(str(error.path) + '.broken')}; rm -f {path}.pub"
        )
    return DeviceError(
        f"this computer's key for adb, {error.path}, cannot be used: {error}",
        place=name,
        remedy=remedy,
    )


def _serial(name: str) -> str:
    return name.partition(":")[2]
