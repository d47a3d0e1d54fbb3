"""A lock on a folder that runs with different caches share, held by a context manager.

The folder itself is locked: nothing is written, so that it may be read-only, and whoever comes by
another path or with another cache sees the lock.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from etdeploy.core.cancel import checkpoint
from etdeploy.core.progress import Progress, silent

_POLL_S = 0.2


@contextmanager
def exclusive_folder(folder: Path, what: str, progress: Progress = silent) -> Iterator[None]:
    """Holds a folder; waits for another run that holds it, and says so.

    A file system without such locks, as some network ones, is passed over: runs with one cache have
    that cache's own lock all the same.

    Args:
        folder: One that is there.
        what: How the message calls it.
        progress: Told once when it has to be waited for.

    Raises:
        Interrupted: The run was stopped while waiting.
    """
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        told = False
        while not _taken(handle):
            if not told:
                progress(f"waiting for another run that uses {what}")
                told = True
            checkpoint()
            time.sleep(_POLL_S)
        yield
    finally:
        os.close(handle)  # which gives the lock back


def _taken(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
