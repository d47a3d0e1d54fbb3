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
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

# A file, or a folder that is not a `working_folder`, exists for an instant before it is locked.
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


def claim(handle: int) -> bool:
    """Marks an open file as in use until it is closed; False if it is marked already."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # some file systems have no locks; nothing is swept there
        pass
    return True


@contextmanager
def working_folder(parent: Path, prefix: str) -> Iterator[Path]:
    """Yields a new folder that no sweep removes; it goes with the block, if it is still there."""
    folder, handle = _claimed_folder(parent, prefix)
    try:
        yield folder
    finally:
        remove_tree(folder)
        os.close(handle)


def _claimed_folder(parent: Path, prefix: str) -> tuple[Path, int]:
    """A folder and the descriptor that locks it; a sweep may remove one before it is locked."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        with suppress(FileNotFoundError):
            handle = os.open(folder, os.O_RDONLY)
            with suppress(FileNotFoundError):
                if claim(handle) and os.path.samestat(os.fstat(handle), folder.stat()):
                    return folder, handle
            os.close(handle)


def is_abandoned(path: Path) -> bool:
    """Whether nobody is using a file or folder that was written under a claim."""
    with _if_abandoned(path, _SETTLED_S) as abandoned:
        return abandoned


@contextmanager
def _if_abandoned(path: Path, settled_s: float) -> Iterator[bool]:
    """Whether nobody is using it; while the block runs, nobody begins to."""
    with ExitStack() as stack:
        abandoned = False
        with suppress(OSError):  # it is gone or in use, or nobody can tell
            if time.time() - path.lstat().st_mtime >= settled_s:
                handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
                stack.callback(os.close, handle)
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                abandoned = True
        yield abandoned


def sweep(folder: Path) -> None:
    """Deletes what killed runs left in a folder of the cache, and nothing else."""
    for path in _entries(folder):
        if not _ASIDE.fullmatch(path.name):
            continue
        # A working folder is made again if it goes before it is locked.
        with _if_abandoned(path, 0.0 if path.is_dir() else _SETTLED_S) as abandoned:
            if abandoned:
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
