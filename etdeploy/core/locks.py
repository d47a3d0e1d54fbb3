"""Locks between processes; each is held by a context manager."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from etdeploy.core.cancel import checkpoint
from etdeploy.core.disk import naming
from etdeploy.core.progress import Progress, silent

_POLL_S = 0.2


@contextmanager
def exclusive(path: Path, what: str, progress: Progress = silent) -> Iterator[None]:
    """Holds the lock file `path`; waits for another run that holds it, and says so.

    Args:
        path: The lock file; its folder is made when missing.
        what: What is being shared, for the message: "device host", "program 12ab".
        progress: Told once when the lock has to be waited for.

    Raises:
        Interrupted: The run was stopped while waiting.
    """
    from filelock import FileLock, Timeout

    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path, is_singleton=False, thread_local=False)
    told = False
    while True:
        checkpoint()
        try:
            lock.acquire(timeout=0 if not told else _POLL_S)
            break
        except Timeout:
            if not told:
                progress(f"waiting for another run that uses {what}{_holder(path)}")
                told = True
    try:
        _note_holder(path)
        yield
    finally:
        lock.release()


def _note_holder(path: Path) -> None:
    note = path.with_suffix(".pid")
    with naming(note):
        note.write_text(f"{os.getpid()}\n")


def _holder(path: Path) -> str:
    try:
        return f" (process {path.with_suffix('.pid').read_text().strip()})"
    except OSError:
        return ""
