"""The RemoteShell of a board, over ssh."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from etdeploy.core.cached import cached_property
from etdeploy.core.errors import DeviceError
from etdeploy.devices.remote.shell import Advice, Place, RefusedError, SilentError
from etdeploy.devices.shell import Lines, ShellResult, is_marked, marked, parse_marked
from etdeploy.devices.ssh.address import Address
from etdeploy.devices.ssh.channel import Channel, ForeignError, begun
from etdeploy.devices.ssh.client import by_hand
from etdeploy.devices.ssh.connection import Connection, SshError
from etdeploy.devices.ssh.errors import explained, foreign, not_installed
from etdeploy.devices.ssh.place import place_command, place_of

_IDLE_S = 30.0
_TIDY_S = 5.0
# Without it, what a tool says about an error would come on another stream, at another time.
_MERGED = "exec 2>&1\n"
# Some of what tools say is read here.
_OWN = f"{_MERGED}LC_ALL=C; export LC_ALL\n"


class SshShell:
    """Runs commands on a board and copies files.

    Args:
        address: The board.
        idle_s: How long to wait for an answer.
    """

    def __init__(self, address: Address, idle_s: float = _IDLE_S) -> None:
        self.address = address
        self.connection = Connection(address)
        self._idle_s = idle_s

    @property
    def name(self) -> str:
        return self.address.name

    @cached_property
    def place(self) -> Place:
        doing = "looking for a folder that etdeploy can use"
        return place_of(self.shell(place_command(self.address.folder), doing).output, self.address)

    @property
    def advice(self) -> Advice:
        return Advice(
            noun="board",
            prefix=by_hand(self.address),
            restart=by_hand(self.address, "sudo", "reboot"),
            damaged="Look for a failing disk or memory of the board",
        )

    def shell(self, command: str, doing: str, idle_s: float | None = None) -> ShellResult:
        running = self._start(_OWN, command, doing, idle_s or self._idle_s)
        with contextlib.closing(running):
            try:
                return running.finish(doing)
            except SilentError as error:
                raise self._silent(doing) from error

    def require(self, command: str, doing: str, idle_s: float | None = None) -> str:
        result = self.shell(command, doing, idle_s)
        if not result.ok:
            said = result.output.strip() or f"exit code {result.exit_code}"
            raise DeviceError(f"the board failed while {doing}: {said}", place=self.name)
        return result.output

    def tidy(self, command: str) -> None:
        # Twice: after a broken connection the first call may only find out that it is broken.
        for _ in range(2):
            try:
                with begun(self.connection, _OWN + command, heed_stop=False) as channel:
                    for _ in channel.pieces(_TIDY_S):
                        pass
                    channel.exit_code()
                    return
            except SshError as error:
                if not error.connected:  # it is gone, and each attempt takes a while
                    return
            except (ForeignError, OSError):
                continue

    def start(self, command: str, doing: str, idle_s: float) -> SshCommand:
        return self._start(_MERGED, command, doing, idle_s)

    def _start(self, before: str, command: str, doing: str, idle_s: float) -> SshCommand:
        marker = f"etdeploy-{secrets.token_hex(8)}"
        with contextlib.ExitStack() as stack, self.errors(doing):
            channel = stack.enter_context(begun(self.connection, before + marked(command, marker)))
            channel.begin(self._idle_s)
            return SshCommand(self, channel, marker, idle_s, stack.pop_all())

    @contextlib.contextmanager
    def held(self, command: str, doing: str) -> Iterator[SshHeld]:
        with contextlib.ExitStack() as stack:
            with self.errors(doing):
                channel = stack.enter_context(begun(self.connection, _OWN + command))
            yield SshHeld(self, channel, self._idle_s)

    def send(
        self,
        source: Path,
        target: str,
        doing: str,
        on_bytes: Callable[[int], None],
        start: int = 0,
        size: int | None = None,
    ) -> None:
        marker = f"etdeploy-{secrets.token_hex(8)}"
        # ssh sends the rest of the file too, until the channel ends: 2 MB at most.
        copying = "cat" if size is None else f"head -c {size}"
        script = _OWN + marked(f"{copying} >{quote(target)}", marker)
        with source.open("rb", buffering=0) as file, self.errors(doing):
            file.seek(start)
            with begun(self.connection, script, file) as channel:
                for sent in channel.sent(file, start, self._idle_s):
                    on_bytes(sent if size is None else min(sent, size))
                result = parse_marked(channel.output, marker)
                if result is None:
                    raise channel.failure()
        if not result.ok:
            said = result.output.strip() or f"exit code {result.exit_code}"
            raise RefusedError(said.splitlines()[-1])

    def content(self, source: str, doing: str) -> Iterator[bytes]:
        yield from self._output(f"cat -- {quote(source)}", doing)

    def read(self, source: str, doing: str) -> str:
        words = quote(source)
        data = b"".join(self._output(f"[ ! -e {words} ] || cat -- {words}", doing))
        return data.decode(errors="replace")

    def pull(self, source: str, to: Path, doing: str) -> None:
        to.parent.mkdir(parents=True, exist_ok=True)
        part = to.with_name(f".{to.name}.part")
        try:
            with part.open("wb") as file:
                for piece in self.content(source, doing):
                    file.write(piece)
            part.replace(to)
        finally:
            part.unlink(missing_ok=True)

    def close(self) -> None:
        """Ends the connection."""
        self.connection.close()

    @contextlib.contextmanager
    def errors(self, doing: str) -> Iterator[None]:
        """Turns errors of the connection into one for the user."""
        try:
            yield
        except SshError as error:
            raise explained(error, self.address, doing) from error
        except ForeignError as error:
            raise foreign(str(error), self.address) from error
        except TimeoutError as error:
            raise self._silent(doing) from error
        except FileNotFoundError as error:
            if error.filename != "ssh":
                raise
            raise not_installed(self.address) from error

    def _output(self, script: str, doing: str) -> Iterator[bytes]:
        """What a script prints, byte for byte."""
        with self.errors(doing), begun(self.connection, script) as channel:
            yield from channel.pieces(self._idle_s)
            code = channel.exit_code()
            if code:
                said = channel.errors().strip() or f"exit code {code}"
                raise DeviceError(f"the board failed while {doing}: {said}", place=self.name)

    def _silent(self, doing: str) -> DeviceError:
        return DeviceError(
            f"the board stopped answering while {doing} (no answer within {self._idle_s:g} s)",
            place=self.name,
            remedy="Check the board and the network, then run the same command again.",
        )


@dataclass(frozen=True)
class SshHeld:
    """A command that is talked with line by line.

    Attributes:
        shell: What started it.
        channel: To it.
        idle_s: How long an answer usually takes at most.
    """

    shell: SshShell
    channel: Channel
    idle_s: float

    def say(self, lines: str, doing: str) -> None:  # noqa: ARG002 - what is heard tells of its end
        self.channel.say(lines)

    def hear(self, doing: str, idle_s: float | None = None) -> str:
        with self.shell.errors(doing):
            return (self.channel.line(idle_s or self.idle_s) or "").strip()

    def line(self, doing: str, idle_s: float) -> str | None:
        with self.shell.errors(doing):
            try:
                return self.channel.line(idle_s)
            except TimeoutError as error:
                raise SilentError from error

    def result(self, marker: str, doing: str, idle_s: float | None = None) -> ShellResult:
        with self.shell.errors(doing):
            result = self.channel.result(marker, idle_s or self.idle_s)
            if result is None:
                raise self.channel.failure()
            return result


@dataclass(frozen=True)
class SshCommand:
    """A command that the board's shell has begun.

    Attributes:
        shell: What started it.
        channel: What it prints.
        marker: What comes before its exit code.
        idle_s: How long it may be silent.
        held: What is closed with it.
    """

    shell: SshShell
    channel: Channel
    marker: str
    idle_s: float
    held: contextlib.ExitStack

    def finish(self, doing: str, on_line: Callable[[str], None] | None = None) -> ShellResult:
        output, lines = bytearray(), Lines(on_line)
        with self.shell.errors(doing):
            try:
                for part in self.channel.pieces(self.idle_s):
                    output += part
                    lines.take(part)
                    # What a command left behind may keep the channel open.
                    if is_marked(output, self.marker):
                        break
            except TimeoutError as error:
                raise SilentError from error
            result = parse_marked(bytes(output), self.marker)
            if result is None:
                raise self.channel.failure()
            return result

    def close(self) -> None:
        """Ends the connection to it."""
        self.held.close()
