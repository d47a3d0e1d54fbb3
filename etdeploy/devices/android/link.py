"""The connection to one Android device, with errors that a user can act on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from etdeploy.core.errors import DeviceError
from etdeploy.devices.adb.errors import AdbError
from etdeploy.devices.adb.exec import ShellResult, run_command
from etdeploy.devices.adb.stream import Patience, Transport
from etdeploy.devices.adb.sync import pull_file, read_file
from etdeploy.devices.android.errors import explained

_CLEANING = Patience(idle_s=5.0, heed_cancel=False, open_s=5.0)


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

    @property
    def serial(self) -> str:
        """As adb names the device."""
        return self.name.partition(":")[2]

    def shell(self, command: str, doing: str, idle_s: float | None = None) -> ShellResult:
        """Runs one of etdeploy's commands in the device's shell.

        Args:
            command: Quoted for the shell.
            doing: What it is for, in the message of an error: "reading its battery state".
            idle_s: How long it may be silent.

        Raises:
            DeviceError: The device went away, refuses the connection, or does not answer.
        """
        patience = self.patience if idle_s is None else replace(self.patience, idle_s=idle_s)
        with self.errors(doing):
            return run_command(self.transport, command, patience)

    def require(self, command: str, doing: str, idle_s: float | None = None) -> str:
        """Like `shell`, for a command that must succeed; returns its output.

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
        """Copies a file from the device; `to` is replaced once all of it has arrived.

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
            DeviceError: The device went away, or cannot read it.
        """
        with self.errors(doing):
            data = read_file(self.transport, source, self.patience)
        return (data or b"").decode(errors="replace")

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
