"""Children that another process forks for us, because it has already imported what they need.

The server gets orders over a socket: one datagram each, with four file descriptors. These are the
order itself (a file in memory with the arguments, working folder and environment), a socket for
its answers, the pipe for the output, and the mark by which `orphans.py` finds the child. The
answers are words in a line: `pid N` from the child once it leads its own session, `ended CODE` from
the server, or `refused WHY` from either. The end of that socket without `ended` means that the
server is gone. Linux only.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from etdeploy.core import cancel

# The descriptors of an order.
ORDER_FDS = 4
# How often to check for a stop request while the server is not ready yet.
_POLL_S = 0.2


class ForkRefusedError(Exception):
    """The server did not start the child; nothing has run. The text says why."""


class ForkLostError(Exception):
    """The server ended before its child, which was killed: nobody knows how it would have ended."""


class Fork:
    """A child that a server forked; `process.py` uses it like one that it started itself.

    Attributes:
        pid: Its process id; it leads a session of its own.
        returncode: Its exit code, negative for a signal; None while it runs.
        stdout: Its output and its errors, in one pipe.
        stderr: None.
        lost: Whether the server ended before it.
    """

    def __init__(self, answers: socket.socket, output: IO[bytes]) -> None:
        self._answers = answers
        self._unread = b""
        self.stdout: IO[bytes] | None = output
        self.stderr: IO[bytes] | None = None
        self.returncode: int | None = None
        self.lost = False
        while not self._ready(_POLL_S):
            cancel.checkpoint()
        word, _, rest = self._line().partition(" ")
        if word != "pid":
            cancel.checkpoint()  # a stop ends the server, too
            raise ForkRefusedError(rest or "it has ended")
        self.pid = int(rest)

    def fileno(self) -> int:
        """The descriptor that can be read when the child has ended."""
        return self._answers.fileno()

    def poll(self) -> int | None:
        """Its exit code, if it has ended."""
        if self.returncode is None and self._ready(0):
            self._take_end()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Waits for its end and returns its exit code."""
        if self.returncode is None:
            if not self._ready(timeout):
                raise TimeoutError
            self._take_end()
        return self.returncode or 0

    def close(self) -> None:
        """Closes the socket; the child is not touched."""
        self._answers.close()

    def _ready(self, timeout_s: float | None) -> bool:
        if self._unread:
            return True
        poll = select.poll()
        poll.register(self._answers, select.POLLIN)
        return bool(poll.poll(None if timeout_s is None else timeout_s * 1000))

    def _take_end(self) -> None:
        word, _, rest = self._line().partition(" ")
        self.lost = word != "ended"
        if self.lost:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        self.returncode = -signal.SIGKILL if self.lost else int(rest)

    def _line(self) -> str:
        """The next answer; empty at the end of the socket."""
        while b"\n" not in self._unread:
            try:
                part = self._answers.recv(4096)
            except ConnectionError:
                part = b""
            if not part:
                return ""
            self._unread += part
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode(errors="replace")


class ForkServer:
    """The other end of a server's socket; any thread may order children."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._lock = threading.Lock()

    def fork(
        self, argv: Sequence[str], cwd: Path | None, env: Mapping[str, str], mark: int
    ) -> Fork:
        """Orders a child, and waits until it runs.

        Args:
            argv: What the child finds in `sys.argv`.
            cwd: Its working folder; the caller's when None.
            env: Its whole environment.
            mark: A pipe that the child holds open.
        """
        order = {"argv": list(argv), "cwd": str(cwd or Path.cwd()), "env": dict(env)}
        ours, theirs = socket.socketpair()
        read, write = os.pipe()
        output = os.fdopen(read, "rb")
        try:
            with theirs, _in_memory(json.dumps(order)) as content:
                self._send([content.fileno(), theirs.fileno(), write, mark])
        except OSError as error:
            os.close(write)
            output.close()
            ours.close()
            cancel.checkpoint()
            raise ForkRefusedError("it has ended") from error
        os.close(write)
        try:
            return Fork(ours, output)
        except BaseException:
            output.close()
            ours.close()
            raise

    def _send(self, descriptors: list[int]) -> None:
        with self._lock:
            socket.send_fds(self._control, [b"fork"], descriptors)


def _in_memory(text: str) -> IO[bytes]:
    """A file without a name: a pipe would block when the server is slow to read."""
    content = os.fdopen(os.memfd_create("order"), "w+b")
    content.write(text.encode())
    content.flush()
    content.seek(0)
    return content
