"""The connection to one Android device, with errors that a user can act on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from etdeploy.core.errors import DeviceError
from etdeploy.devices.adb_exec import ShellResult, run_command
from etdeploy.devices.adb_stream import (
    AdbError,
    AdbGoneError,
    AdbRefusedError,
    AdbTimeoutError,
    AdbUnauthorizedError,
    Patience,
    Transport,
)
from etdeploy.devices.adb_sync import pull_file

_CLEANING = Patience(idle_s=5.0, heed_cancel=False)


class AndroidLink:
    """Runs commands on a device and copies files from it.

    Args:
        name: The device's name for the user.
        transport: The way to it.
        patience: For ordinary reads and writes.
    """

    def __init__(self, name: str, transport: Transport, patience: Patience) -> None:
        self.name = name
        self.transport = transport
        self.patience = patience

    def shell(self, command: str, doing: str, idle_s: float | None = None) -> ShellResult:
        """Runs a command of ours in the device's shell.

        Args:
            command: Quoted for the shell.
            doing: What it is for, in the message of an error: "asking for its battery".
            idle_s: How long it may be silent.

        Raises:
            DeviceError: The device went away, does not let us in, or does not answer.
        """
        patience = self.patience if idle_s is None else replace(self.patience, idle_s=idle_s)
        with self.errors(doing):
            return run_command(self.transport, command, patience)

    def require(self, command: str, doing: str, idle_s: float | None = None) -> str:
        """As `shell`, for a command that must succeed; its output.

        Raises:
            DeviceError: It did not, or the device went away.
        """
        result = self.shell(command, doing, idle_s)
        if not result.ok:
            said = result.output.strip() or f"exit code {result.exit_code}"
            raise DeviceError(f"the device failed while {doing}: {said}", place=self.name)
        return result.output

    def tidy(self, command: str) -> None:
        """Runs a command if the device is still there; a stop request does not stop it.

        Tried twice: after a broken connection the first call may only find out that it is broken.
        """
        for _ in range(2):
            with contextlib.suppress(AdbError):
                run_command(self.transport, command, _CLEANING)
                return

    def pull(self, source: str, to: Path, doing: str) -> None:
        """Copies a file from the device; `to` is replaced when all of it has come.

        Raises:
            DeviceError: It cannot be read, or the device went away.
        """
        to.parent.mkdir(parents=True, exist_ok=True)
        part = to.with_name(f".{to.name}.part")
        try:
            with self.errors(doing), part.open("wb") as file:
                for piece in pull_file(self.transport, source, self.patience):
                    file.write(piece)
            part.replace(to)
        finally:
            part.unlink(missing_ok=True)

    def read(self, source: str, doing: str) -> str:
        """The text of a file on the device; empty when there is none.

        Raises:
            DeviceError: The device went away.
        """
        with self.errors(doing):
            try:
                data = b"".join(pull_file(self.transport, source, self.patience))
            except AdbRefusedError:
                return ""
        return data.decode(errors="replace")

    @contextlib.contextmanager
    def errors(self, doing: str) -> Iterator[None]:
        """Turns errors of the connection into one for the user."""
        try:
            yield
        except AdbError as error:
            raise explained(error, self.name, doing) from error

    def close(self) -> None:
        """Ends the connection."""
        self.transport.close()


def explained(error: AdbError, name: str, doing: str) -> DeviceError:
    """An error of the connection, with what usually causes it and what to do."""
    said = str(error)
    if isinstance(error, AdbUnauthorizedError) or "unauthorized" in said:
        return unauthorized(name)
    if "offline" in said:
        return offline(name)
    if "encrypted connection" in said:
        return _needs_tls(name)
    if isinstance(error, AdbTimeoutError):
        return DeviceError(
            f"the device stopped answering while {doing} ({said})",
            place=name,
            remedy="Look at its screen and cable, then run the same command again.",
        )
    if isinstance(error, AdbGoneError) or "not found" in said or "closed" in said:
        return DeviceError(
            f"the device went away while {doing} ({said})",
            place=name,
            remedy="Check the cable or the network; `etdeploy devices` shows what can be reached.\n"
            "Then run the same command again: what has arrived is kept.",
        )
    return DeviceError(f"the device failed while {doing}: {said}", place=name)


def unauthorized(name: str) -> DeviceError:
    """The device does not trust this computer yet."""
    return DeviceError(
        "the device does not allow USB debugging from this computer yet",
        place=name,
        remedy="Unlock the phone and confirm the prompt `Allow USB debugging?` on its screen,\n"
        "then run the same command again. If no prompt shows: Settings > Developer options >\n"
        "Revoke USB debugging authorizations, and plug the phone in again.",
    )


def offline(name: str) -> DeviceError:
    """The adb server knows the device, and gets no answer from it."""
    serial = name.partition(":")[2]
    again = f"adb disconnect {serial} && adb connect {serial}" if ":" in serial else "adb reconnect"
    return DeviceError(
        "the device is offline: the adb server knows it, but it does not answer",
        place=name,
        remedy=f"Wake the phone or plug it in again, or:\n{again}",
    )


def _needs_tls(name: str) -> DeviceError:
    address = name.partition(":")[2]
    return DeviceError(
        "the device wants an encrypted connection (wireless debugging), "
        "which only the adb program speaks",
        place=name,
        remedy="Pair once, with address and code from Settings > Developer options > Wireless\n"
        f"debugging, then connect:\nadb pair HOST:PAIRING_PORT && adb connect {address}",
    )
