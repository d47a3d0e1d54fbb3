"""Reads what a child process prints while it runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import IO


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
