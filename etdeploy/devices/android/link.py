"""The connection to one Android device, with errors that a user can act on."""

from __future__ import annotations

import contextlib
import secrets
import struct
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from io import FileIO
from pathlib import Path
from shlex import quote

from etdeploy.devices.adb.stream import (
    AdbError,
    AdbGoneError,
    AdbRefusedError,
    AdbTimeoutError,
    Stream,
    Timeouts,
    Transport,
    receive_exactly,
)
from etdeploy.devices.android.diagnostics import explain
from etdeploy.devices.android.facts import BASE
from etdeploy.devices.remote.shell import Advice, DevicePaths, DeviceWriteError, SilentError
from etdeploy.devices.shell import Lines, ShellResult, is_marked, marked, parse_marked, take_marked


@dataclass(frozen=True)
class RunningCommand:
    """A command that the device's shell has begun; `marker` comes before its exit code."""

    stream: Stream
    marker: str

    def finish(self, on_line: Callable[[str], None] | None = None) -> ShellResult:
        """Waits for the exit code; `on_line` is called with each line as it comes.

        Not for the end of the stream: what a command left behind may keep that open.
        """
        output, lines = bytearray(), Lines(on_line)
        while not is_marked(output, self.marker) and (part := self.stream.receive(_READ)):
            output += part
            lines.take(part)
        result = parse_marked(bytes(output), self.marker)
        if result is None:
            raise AdbGoneError("the device's shell ended in the middle of a command")
        return result

    def close(self) -> None:
        """Ends the connection to it."""
        self.stream.close()


def start_command(transport: Transport, command: str, timeouts: Timeouts) -> RunningCommand:
    """Starts a command; every word in it from outside must have gone through shlex.quote."""
    marker = f"etdeploy-{secrets.token_hex(8)}"
    return RunningCommand(transport.open(f"exec:{marked(command, marker)}", timeouts), marker)


def run_command(transport: Transport, command: str, timeouts: Timeouts) -> ShellResult:
    """Like `start_command`, but waits for the end."""
    with closing(start_command(transport, command, timeouts)) as running:
        return running.finish()


PLACE = DevicePaths(BASE)
_CLEANING = Timeouts(idle_s=5.0, heed_cancel=False, open_s=5.0)
_LONGEST_LINE = 1024
_READ = 1 << 16


class AndroidLink:
    """The RemoteShell of an Android device, over adb."""

    def __init__(self, name: str, transport: Transport, timeouts: Timeouts) -> None:
        self.name = name
        self.place = PLACE
        self.transport = transport
        self.timeouts = timeouts

    @property
    def advice(self) -> Advice:
        serial = quote(self.name.partition(":")[2])
        return Advice(
            noun="device",
            prefix=f"adb -s {serial} shell",
            restart=f"adb -s {serial} reboot",
            damaged="Try another cable or port",
        )

    def shell(self, command: str, activity: str, idle_s: float | None = None) -> ShellResult:
        timeouts = self.timeouts if idle_s is None else replace(self.timeouts, idle_s=idle_s)
        with self.errors(activity):
            return run_command(self.transport, command, timeouts)

    def best_effort_cleanup(self, command: str) -> None:
        # Twice: after a broken connection the first call may only find out that it is broken.
        for _ in range(2):
            with contextlib.suppress(AdbError):
                run_command(self.transport, command, _CLEANING)
                return

    def start(self, command: str, activity: str, idle_s: float) -> AndroidCommand:
        with self.errors(activity):
            timeouts = replace(self.timeouts, idle_s=idle_s)
            return AndroidCommand(self, start_command(self.transport, command, timeouts))

    @contextlib.contextmanager
    def persistent_shell(self, command: str, activity: str) -> Iterator[AndroidPersistentShell]:
        with self.errors(activity):
            stream = self.transport.open(f"exec:{command}", self.timeouts)
        with contextlib.closing(stream):
            yield AndroidPersistentShell(self, stream)

    def send(
        self,
        source: Path,
        target: str,
        activity: str,
        on_bytes: Callable[[int], None],
        start: int = 0,
        size: int | None = None,
    ) -> None:
        with self.errors(activity):
            try:
                push_file(self.transport, source, target, self.timeouts, on_bytes, start, size)
            except AdbRefusedError as error:
                raise DeviceWriteError(str(error)) from error

    def content(self, source: str, activity: str) -> Iterator[bytes]:
        with self.errors(activity):
            yield from pull_file(self.transport, source, self.timeouts)

    def read(self, source: str, activity: str) -> str:
        with self.errors(activity):
            data = read_file(self.transport, source, self.timeouts)
        return (data or b"").decode(errors="replace")

    @contextlib.contextmanager
    def errors(self, activity: str) -> Iterator[None]:
        """Turns errors of the connection into one for the user."""
        try:
            yield
        except AdbError as error:
            raise explain(error, self.name, activity) from error

    def close(self) -> None:
        """Ends the connection."""
        self.transport.close()


@dataclass(frozen=True)
class AndroidCommand:
    """A command that the device's shell has begun."""

    link: AndroidLink
    command: RunningCommand

    def finish(self, activity: str, on_line: Callable[[str], None] | None = None) -> ShellResult:
        with self.link.errors(activity):
            try:
                return self.command.finish(on_line)
            except AdbTimeoutError as error:
                raise SilentError from error

    def close(self) -> None:
        """Ends the connection to it."""
        self.command.close()


@dataclass(frozen=True)
class AndroidPersistentShell:
    """A command that the device's shell has begun, and that is talked with line by line."""

    link: AndroidLink
    stream: Stream
    received: bytearray = field(default_factory=bytearray)

    def write_lines(self, lines: str, activity: str) -> None:
        with self.link.errors(activity):
            self.stream.send(f"{lines}\n".encode())

    def read_reply(self, activity: str, idle_s: float | None = None) -> str:
        with self.link.errors(activity):
            return (self._next(idle_s) or "").strip()

    def read_line(self, activity: str, idle_s: float) -> str | None:
        with self.link.errors(activity):
            try:
                return self._next(idle_s)
            except AdbTimeoutError as error:
                raise SilentError from error

    def _next(self, idle_s: float | None) -> str | None:
        """The next line; None at the end."""
        while b"\n" not in self.received and len(self.received) < _LONGEST_LINE:
            if not self._receive(idle_s):
                break
        if not self.received:
            return None
        line, _, rest = self.received.partition(b"\n")
        self.received[:] = rest
        return line.decode(errors="replace").rstrip("\r")

    def read_result(self, marker: str, activity: str, idle_s: float | None = None) -> ShellResult:
        with self.link.errors(activity):
            while (result := take_marked(self.received, marker)) is None:
                if not self._receive(idle_s):
                    raise AdbGoneError("the device's shell ended in the middle of a command")
        return result

    def _receive(self, idle_s: float | None) -> bool:
        """Takes in what comes next; whether anything did."""
        timeouts = self.link.timeouts
        self.stream.timeouts = timeouts if idle_s is None else replace(timeouts, idle_s=idle_s)
        part = self.stream.receive(_READ)
        self.received.extend(part)
        return bool(part)


# What a DATA packet holds at most, and its header.
_CHUNK = 64 * 1024
_HEADER_BYTES = 8
_SLOT = _HEADER_BYTES + _CHUNK
_REGULAR_FILE = 0o100000


def push_file(
    transport: Transport,
    source: Path,
    target: str,
    timeouts: Timeouts,
    on_bytes: Callable[[int], None],
    start: int = 0,
    size: int | None = None,
) -> None:
    """Sends a file or a range of it; the device writes it as it comes."""
    with FileIO(source) as file, closing(transport.open("sync:", timeouts)) as stream:
        file.seek(start)
        _ask(stream, b"SEND", f"{target},{_REGULAR_FILE | 0o644}")
        try:
            _send_content(stream, file, size, on_bytes)
        except AdbGoneError:
            # A device that cannot write says why before it hangs up.
            if not stream.has_input():
                raise
        _read_status(stream)


def _send_content(
    stream: Stream, file: FileIO, size: int | None, on_bytes: Callable[[int], None]
) -> None:
    block = _Block(stream.block_bytes)
    sent = 0
    while filled := block.fill(file, None if size is None else size - sent):
        if stream.has_input():
            return
        stream.send(block.packets())
        sent += filled
        on_bytes(sent)
    # The device sets this time as the file's: a fixed one, since the content is what counts.
    stream.send(_packet(b"DONE", 1))


class _Block:
    """DATA packets of a file, read to where they are sent from.

    One buffer for all of a file: new ones of this size would cost more than reading the file.
    """

    def __init__(self, size_bytes: int) -> None:
        # Whole packets only, so that a block fits into one packet of the connection below.
        self._slots = max(1, size_bytes // _SLOT)
        self._view = memoryview(bytearray(self._slots * _SLOT))
        self._end = 0

    def fill(self, file: FileIO, limit: int | None) -> int:
        """Reads on in the file, up to `limit` bytes; returns how many it read."""
        self._end = total = 0
        for _ in range(self._slots):
            start = self._end + _HEADER_BYTES
            room = _CHUNK if limit is None else min(_CHUNK, limit - total)
            size = file.readinto(self._view[start : start + room]) or 0
            if not size:
                break
            self._view[self._end : start] = _packet(b"DATA", size)
            self._end = start + size
            total += size
        return total

    def packets(self) -> memoryview:
        """What was read, as packets; valid until the next `fill`."""
        return self._view[: self._end]


def _read_status(stream: Stream) -> None:
    kind, size = struct.unpack("<4sI", receive_exactly(stream, 8))
    if kind == b"FAIL":
        raise AdbRefusedError(receive_exactly(stream, size).decode(errors="replace"))
    if kind != b"OKAY":
        raise AdbGoneError(f"the device answered {kind!r} instead of OKAY")


def pull_file(transport: Transport, source: str, timeouts: Timeouts) -> Iterator[bytes]:
    """The content of a file on the device, in pieces."""
    with closing(transport.open("sync:", timeouts)) as stream:
        yield from _received(stream, source)


def read_file(transport: Transport, source: str, timeouts: Timeouts) -> bytes | None:
    """The content of a small file on the device; None where there is none."""
    with closing(transport.open("sync:", timeouts)) as stream:
        _ask(stream, b"STAT", source)
        kind, mode, _, _ = struct.unpack("<4s3I", receive_exactly(stream, 16))
        if kind != b"STAT":
            raise AdbGoneError(f"the device answered {kind!r} instead of STAT")
        # The mode of what is not there.
        return b"".join(_received(stream, source)) if mode else None


def _received(stream: Stream, source: str) -> Iterator[bytes]:
    _ask(stream, b"RECV", source)
    while True:
        kind, size = struct.unpack("<4sI", receive_exactly(stream, 8))
        if kind == b"DONE":
            return
        content = receive_exactly(stream, size)
        if kind == b"FAIL":
            raise AdbRefusedError(content.decode(errors="replace"))
        if kind != b"DATA":
            raise AdbGoneError(f"the device answered {kind!r} instead of DATA")
        yield content


def _ask(stream: Stream, kind: bytes, path: str) -> None:
    name = path.encode()
    stream.send(_packet(kind, len(name)) + name)


def _packet(kind: bytes, value: int) -> bytes:
    return struct.pack("<4sI", kind, value)
