"""What a killed run leaves half-written, and how a later run knows that nobody is using it.

A run that writes a temporary file or folder holds a lock on it (flock(2)). The system releases the
lock when the process ends, however it ends, so there is no need to trust a process id, which may
have been reused, or the clock.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# A file or folder exists for an instant before it is locked.
_SETTLED_S = 60.0
# The names that this package gives, and no others: unfinished folders of the cache, unfinished
# files, and the working folders of export, clone and push.
_ASIDE = re.compile(
    r"\.([0-9a-f]{32,64}|executorch-.+)\.[a-z0-9_]{8}(\.old)?"
    r"|\..+\.[0-9a-f]{12}"
    r"|\.(staging-|cloning-|new\.)[a-z0-9_]{8}"
)


@contextmanager
def claimed(path: Path) -> Iterator[None]:
    """Marks a file or folder as in use, for other runs, while the block runs."""
    handle = os.open(path, os.O_RDONLY)
    try:
        claim(handle)
        yield
    finally:
        os.close(handle)


def claim(handle: int) -> None:
    """Marks an open file as in use until it is closed."""
    with suppress(OSError):  # some file systems have no locks; nothing is swept there
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_abandoned(path: Path) -> bool:
    """Whether nobody is using a file or folder that was written under a claim."""
    try:
        if time.time() - path.lstat().st_mtime < _SETTLED_S:
            return False
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # it is in use, or nobody can tell
        return False
    finally:
        os.close(handle)
    return True


def sweep(folder: Path) -> None:
    """Deletes what killed runs left in a folder of the cache, and nothing else."""
    for path in _entries(folder):
        if _ASIDE.fullmatch(path.name) and is_abandoned(path):
            remove_tree(path)


def sweep_empty(folder: Path, names: re.Pattern[str]) -> None:
    """Deletes the empty folders with these names that nobody is using."""
    for path in _entries(folder):
        if names.fullmatch(path.name) and path.is_dir() and is_abandoned(path):
            with suppress(OSError):  # it is not empty
                path.rmdir()


def remove_tree(path: Path) -> None:
    """Deletes a file, a symbolic link, or a folder with everything in it.

    What cannot be deleted stays.
    """
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink(missing_ok=True)


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []
