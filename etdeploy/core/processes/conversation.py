"""What is said to a running process and what it answers; `core/processes/process.py` starts it."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import IO, Protocol

from etdeploy.core import cancel

# How often to check for a stop request.
_SLICE_S = 0.2
_GRACE_S = 1.0


class Talker(Protocol):
    """The process."""

    @property
    def stdout(self) -> IO[bytes] | None: ...

    @property
    def stderr(self) -> IO[bytes] | None: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...


class InteractiveProcess:
    """A process whose input and output are the caller's.

    Args:
        child: The process.
        words: The descriptor that writes to its standard input; None where that is a file.
    """

    def __init__(self, child: Talker, words: int | None) -> None:
        self._child = child
        self._words = words
        self._errors = Collector({"stderr": child.stderr}, None, None)

    def read(self, size: int, idle_s: float, *, heed_stop: bool = True) -> bytes:
        """Up to `size` bytes of its output; none at the end of the output.

        Raises:
            TimeoutError: It printed nothing for that long.
            Interrupted: The run was asked to stop, and `heed_stop` holds.
        """
        if self._child.stdout is None:
            raise ValueError("its output is not a pipe")
        handle = self._child.stdout.fileno()
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        since = time.monotonic()
        while True:
            if heed_stop:
                cancel.checkpoint()
            left_s = idle_s - (time.monotonic() - since)
            if poll.poll(1000 * max(0.0, min(left_s, _SLICE_S))):
                found = os.read(handle, size)
                if heed_stop and not found:
                    cancel.checkpoint()  # a stop ends the child, too
                return found
            if left_s <= 0:
                raise TimeoutError(f"no answer within {idle_s:g} s")

    def say(self, words: bytes) -> None:
        """Writes to its standard input; does nothing where it no longer listens."""
        left = memoryview(words)
        while self._words is not None and left:
            try:
                # A signal may end it in the middle.
                left = left[os.write(self._words, left) :]
            except BrokenPipeError:
                return

    def end_input(self) -> None:
        """Closes its standard input."""
        if self._words is not None:
            os.close(self._words)
            self._words = None

    def close(self) -> None:
        """Closes its standard input, and listens no longer."""
        self.end_input()
        if self._child.stdout:
            self._child.stdout.close()

    @property
    def exit_code(self) -> int | None:
        """The result of the process, negative for a signal; None while it runs."""
        return self._child.poll()

    def ended(self, timeout_s: float) -> int:
        """Waits for its end, and returns its exit code."""
        deadline = time.monotonic() + timeout_s
        while (code := self._child.poll()) is None:
            if time.monotonic() > deadline:
                raise TimeoutError("it does not end")
            time.sleep(0.002)
        return code

    def errors(self) -> str:
        """All that it wrote to stderr; for a process that has ended."""
        return self._errors.finish(_GRACE_S)[1]


class Collector:
    """Reads a child's pipes in threads, so that neither fills up.

    Args:
        streams: The child's `stdout` and `stderr`; None for one that is not a pipe.
        on_line: Called with each line of stdout as it comes.
        log: Receives each line as it comes.

    A process that left the child's group may hold a pipe open forever. `finish` does not wait for
    it; the thread keeps emptying the pipe and discards what it reads.
    """

    def __init__(
        self,
        streams: Mapping[str, IO[bytes] | None],
        on_line: Callable[[str], None] | None,
        log: IO[bytes] | None,
    ) -> None:
        self._on_line = on_line
        self._log = log
        self._parts: dict[str, list[bytes]] = {"stdout": [], "stderr": []}
        self._finished = False
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._read, args=(name, stream), daemon=True)
            for name, stream in streams.items()
            if stream is not None
        ]
        for thread in self._threads:
            thread.start()

    def _read(self, name: str, stream: IO[bytes]) -> None:
        with stream:
            for line in stream:
                with self._lock:
                    if not self._finished:
                        self._take(name, line)

    def _take(self, name: str, line: bytes) -> None:
        self._parts[name].append(line)
        if self._log:
            with suppress(OSError):  # a full disk; the pipe must be emptied anyway
                self._log.write(line)
        if self._on_line and name == "stdout":
            self._on_line(line.decode(errors="replace").rstrip("\r\n"))

    def finish(self, grace_s: float) -> tuple[str, str]:
        """Returns stdout and stderr; waits at most `grace_s` seconds for open pipes."""
        deadline = time.monotonic() + grace_s
        for thread in self._threads:
            thread.join(timeout=max(0.0, deadline - time.monotonic()))
        with self._lock:
            self._finished = True
        return self._text("stdout"), self._text("stderr")

    def _text(self, name: str) -> str:
        return b"".join(self._parts[name]).decode(errors="replace")
