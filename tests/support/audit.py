"""Sees what a block of code touches outside of the interpreter's memory."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# Python tells every one of these before it does it, whoever asked.
_TOUCHES = (
    "open", "os.", "pathlib.", "shutil.", "socket.", "subprocess.", "sqlite3.", "tempfile.",
    "glob.",
)  # fmt: skip


class _Recorder:
    """An audit hook; there is no removing it, so it can be put to sleep."""

    def __init__(self) -> None:
        self.seen: list[str] | None = None
        self.thread = 0

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.seen is None or threading.get_ident() != self.thread:
            return
        if event.startswith(_TOUCHES):
            self.seen.append(f"{event}{arguments!r:.120}")


_recorder = _Recorder()
sys.addaudithook(_recorder)


@contextmanager
def touched() -> Iterator[list[str]]:
    """Gives a list that fills with every file, process and connection that the block touches.

    Only what its own thread does counts: another test may have left one that still works.
    Imports touch files too: what the block imports has to be imported before.
    """
    seen: list[str] = []
    _recorder.seen, _recorder.thread = seen, threading.get_ident()
    try:
        yield seen
    finally:
        _recorder.seen = None
