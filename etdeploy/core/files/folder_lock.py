"""A lock on a folder that runs with different caches share, held by a context manager.

The folder itself is locked: nothing is written, so that it may be read-only, and a run that uses
another path or another cache sees the lock.
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

    File systems without such locks, like some network ones, are ignored: runs with the same cache
    still have that cache's own lock.

    Args:
        folder: An existing folder.
        what: Its name in the message.
        progress: Called once if the run has to wait.

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
        os.close(handle)  # which releases the lock


def _taken(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
