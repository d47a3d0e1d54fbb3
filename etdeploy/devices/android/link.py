"""The connection to one Android device, with errors that a user can act on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from shlex import quote

from etdeploy.core.errors import DeviceError
from etdeploy.devices.adb.errors import AdbError, AdbGoneError, AdbRefusedError, AdbTimeoutError
from etdeploy.devices.adb.exec import RunningCommand, run_command, start_command
from etdeploy.devices.adb.stream import Patience, Stream, Transport
from etdeploy.devices.adb.sync import pull_file, push_file, read_file
from etdeploy.devices.android.errors import explained
from etdeploy.devices.android.facts import BASE
from etdeploy.devices.remote.shell import Advice, Place, RefusedError, SilentError
from etdeploy.devices.shell import ShellResult, take_marked

PLACE = Place(BASE)
_CLEANING = Patience(idle_s=5.0, heed_cancel=False, open_s=5.0)
_LONGEST_LINE = 1024
_READ = 1 << 16


class AndroidLink:
    """The RemoteShell of an Android device, over adb.

    Args:
        name: The device's name for the user.
        transport: The way to it.
        patience: For ordinary reads and writes.
    """

    def __init__(self, name: str, transport: Transport, patience: Patience) -> None:
        self.name = name
        self.place = PLACE
        self.transport = transport
        self.patience = patience

    @property
    def advice(self) -> Advice:
        serial = quote(self.name.partition(":")[2])
        return Advice(
            noun="device",
            prefix=f"adb -s {serial} shell",
            restart=f"adb -s {serial} reboot",
            damaged="Try another cable or port",
        )

    def shell(self, command: str, doing: str, idle_s: float | None = None) -> ShellResult:
        patience = self.patience if idle_s is None else replace(self.patience, idle_s=idle_s)
        with self.errors(doing):
            return run_command(self.transport, command, patience)

    def require(self, command: str, doing: str, idle_s: float | None = None) -> str:
        result = self.shell(command, doing, idle_s)
        if not result.ok:
            said = result.output.strip() or f"exit code {result.exit_code}"
            raise DeviceError(f"the device failed while {doing}: {said}", place=self.name)
        return result.output

    def tidy(self, command: str) -> None:
        # Twice: after a broken connection the first call may only find out that it is broken.
        for _ in range(2):
            with contextlib.suppress(AdbError):
                run_command(self.transport, command, _CLEANING)
                return

    def start(self, command: str, doing: str, idle_s: float) -> AndroidCommand:
        with self.errors(doing):
            patience = replace(self.patience, idle_s=idle_s)
            return AndroidCommand(self, start_command(self.transport, command, patience))

    @contextlib.contextmanager
    def held(self, command: str, doing: str) -> Iterator[AndroidConversation]:
        with self.errors(doing):
            stream = self.transport.open(f"exec:{command}", self.patience)
        with contextlib.closing(stream):
            yield AndroidConversation(self, stream)

    def send(
        self,
        source: Path,
        target: str,
        doing: str,
        on_bytes: Callable[[int], None],
        start: int = 0,
        size: int | None = None,
    ) -> None:
        with self.errors(doing):
            try:
                push_file(self.transport, source, target, self.patience, on_bytes, start, size)
            except AdbRefusedError as error:
                raise RefusedError(str(error)) from error

    def content(self, source: str, doing: str) -> Iterator[bytes]:
        with self.errors(doing):
            yield from pull_file(self.transport, source, self.patience)

    def read(self, source: str, doing: str) -> str:
        with self.errors(doing):
            data = read_file(self.transport, source, self.patience)
        return (data or b"").decode(errors="replace")

    def pull(self, source: str, to: Path, doing: str) -> None:
        to.parent.mkdir(parents=True, exist_ok=True)
        part = to.with_name(f".{to.name}.part")
        try:
            with self.errors(doing), part.open("wb") as file:
                for piece in pull_file(self.transport, source, self.patience):
                    file.write(piece)
            part.replace(to)
        finally:
            part.unlink(missing_ok=True)

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


@dataclass(frozen=True)
class AndroidCommand:
    """A command that the device's shell has begun."""

    link: AndroidLink
    command: RunningCommand

    def finish(self, doing: str, on_line: Callable[[str], None] | None = None) -> ShellResult:
        with self.link.errors(doing):
            try:
                return self.command.finish(on_line)
            except AdbTimeoutError as error:
                raise SilentError from error

    def close(self) -> None:
        """Ends the connection to it."""
        self.command.close()


@dataclass(frozen=True)
class AndroidConversation:
    """A command that the device's shell has begun, and that is talked with line by line."""

    link: AndroidLink
    stream: Stream
    heard: bytearray = field(default_factory=bytearray)

    def say(self, lines: str, doing: str) -> None:
        with self.link.errors(doing):
            self.stream.send(f"{lines}\n".encode())

    def hear(self, doing: str, idle_s: float | None = None) -> str:
        with self.link.errors(doing):
            return (self._next(idle_s) or "").strip()

    def line(self, doing: str, idle_s: float) -> str | None:
        with self.link.errors(doing):
            try:
                return self._next(idle_s)
            except AdbTimeoutError as error:
                raise SilentError from error

    def _next(self, idle_s: float | None) -> str | None:
        """The next line; None at the end."""
        while b"\n" not in self.heard and len(self.heard) < _LONGEST_LINE:
            if not self._receive(idle_s):
                break
        if not self.heard:
            return None
        line, _, rest = self.heard.partition(b"\n")
        self.heard[:] = rest
        return line.decode(errors="replace").rstrip("\r")

    def result(self, marker: str, doing: str, idle_s: float | None = None) -> ShellResult:
        with self.link.errors(doing):
            while (result := take_marked(self.heard, marker)) is None:
                if not self._receive(idle_s):
                    raise AdbGoneError("the device's shell ended in the middle of a command")
        return result

    def _receive(self, idle_s: float | None) -> bool:
        """Takes in what comes next; whether anything did."""
        patience = self.link.patience
        self.stream.patience = patience if idle_s is None else replace(patience, idle_s=idle_s)
        part = self.stream.receive(_READ)
        self.heard.extend(part)
        return bool(part)
