"""What is said to a running process and what it answers; `core/processes/process.py` starts it."""

from __future__ import annotations

import os
import select
import time
from typing import IO, Protocol

from etdeploy.core import cancel
from etdeploy.core.processes.collector import Collector

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


class Conversation:
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
        """Waits for its end, and returns its exit code.

        Raises:
            TimeoutError: It did not end.
        """
        deadline = time.monotonic() + timeout_s
        while (code := self._child.poll()) is None:
            if time.monotonic() > deadline:
                raise TimeoutError("it does not end")
            time.sleep(0.002)
        return code

    def errors(self) -> str:
        """All that it wrote to stderr; for a process that has ended."""
        return self._errors.finish(_GRACE_S)[1]
