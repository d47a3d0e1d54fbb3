"""One script on a board, with what it prints apart from what a login shell prints before it."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from etdeploy.core import cancel
from etdeploy.core.processes.conversation import InteractiveProcess
from etdeploy.devices.shell import ShellResult, take_marked
from etdeploy.devices.ssh.connection import Connection, SshError, SshLostError

_READ = 1 << 18
# How often the progress of a file that is being sent is looked at.
_LOOK_S = 0.1
_END_S = 5.0
# ssh's own exit code where the connection failed.
_FAILED = 255


class ForeignError(Exception):
    """Something other than the script ran on the board; the message is what it said."""


class Channel:
    """A script that is running on a board."""

    def __init__(
        self, connection: Connection, conversation: InteractiveProcess, mark: str, heed_stop: bool
    ) -> None:
        self._connection = connection
        self._conversation = conversation
        self._mark = f"{mark}\n".encode()
        self._heed_stop = heed_stop
        self._waiting = b""
        self.output = b""

    def begin(self, idle_s: float) -> None:
        """Waits for the script's own output; may be left out, and is done by the first `read`."""
        said = b""
        while self._mark and self._mark not in said:
            part = self._receive(idle_s)
            if not part:
                raise self._not_begun(said)
            said += part
        if self._mark:
            self._waiting = said.partition(self._mark)[2]
            self._mark = b""

    def read(self, idle_s: float) -> bytes:
        """The next bytes; none at the end. Raises what `begin` does."""
        self.begin(idle_s)
        if self._waiting:
            part, self._waiting = self._waiting, b""
            return part
        return self._receive(idle_s)

    def pieces(self, idle_s: float) -> Iterator[bytes]:
        """All of its output. Raises what `begin` does."""
        while part := self.read(idle_s):
            yield part

    def line(self, idle_s: float) -> str | None:
        """The next line, or what came before the end; None at the end.

        Raises what `begin` does.
        """
        said = bytearray()
        while b"\n" not in said:
            part = self.read(idle_s)
            if not part:
                break
            said += part
        line, _, rest = bytes(said).partition(b"\n")
        self._waiting = rest + self._waiting
        return line.decode(errors="replace").rstrip("\r") if said else None

    def result(self, marker: str, idle_s: float) -> ShellResult | None:
        """What comes up to a line with a marker and an exit code; None when the end is first.

        Raises what `begin` does.
        """
        said = bytearray()
        while (result := take_marked(said, marker)) is None:
            part = self.read(idle_s)
            if not part:
                return None
            said += part
        self._waiting = bytes(said) + self._waiting
        return result

    def exit_code(self) -> int:
        """The script's exit code, after its output has ended."""
        try:
            code = self._conversation.ended(_END_S)
        except TimeoutError as error:
            raise SshLostError("ssh does not end") from error
        if code in (_FAILED, -15, -9):
            raise self.failure()
        return code

    def failure(self) -> SshError:
        """Why the channel ended before the script did."""
        if self._heed_stop:
            cancel.checkpoint()
        return self._connection.failure(self._conversation)

    def errors(self) -> str:
        """What was written to stderr, after the end."""
        return self._conversation.errors()

    def say(self, lines: str) -> None:
        """Writes lines to the script's input."""
        self._conversation.say(f"{lines}\n".encode())

    def sent(self, file: IO[bytes], start: int, idle_s: float) -> Iterator[int]:
        """How many bytes of its input a script has taken, now and then until its end.

        What it printed is in `output` then. Raises what `begin` does, TimeoutError where neither
        the input nor the output moved for that long.
        """
        output = bytearray()
        moved, before = time.monotonic(), start
        while True:
            try:
                part = self.read(_LOOK_S)
            except TimeoutError:
                # ssh reads the very file that is open here, so its place shows how far it is.
                place = os.lseek(file.fileno(), 0, os.SEEK_CUR)
                if place != before:
                    moved, before = time.monotonic(), place
                    yield place - start
                elif time.monotonic() - moved > idle_s:
                    raise
                continue
            if not part:
                self.output = bytes(output)
                return
            output += part

    def _receive(self, idle_s: float) -> bytes:
        return self._conversation.read(_READ, idle_s, heed_stop=self._heed_stop)

    def _not_begun(self, said: bytes) -> Exception:
        # A stop or a broken connection also ends it here.
        code = self.exit_code()
        text = said.decode(errors="replace").strip() or self.errors().strip()
        return ForeignError(text or f"exit code {code}")


@contextmanager
def run_script(
    connection: Connection,
    script: str,
    stdin: IO[bytes] | None = None,
    *,
    heed_stop: bool = True,
) -> Iterator[Channel]:
    """Starts a script with the board's sh; the end of the block ends its input."""
    mark = f"etdeploy-{secrets.token_hex(8)}"
    with connection.channel(f"echo {mark}\n{script}", stdin, heed_stop=heed_stop) as conversation:
        yield Channel(connection, conversation, mark, heed_stop)
