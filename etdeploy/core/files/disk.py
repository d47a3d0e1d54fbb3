"""A full disk: which one it is, and what to do about it."""

from __future__ import annotations

import errno
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from etdeploy.core.console import size
from etdeploy.core.errors import BuildError

# The errors of a full file system and an exhausted quota.
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
# The C library's messages, which Python and compilers print; Python adds the file.
_MESSAGE = re.compile(r"(No space left on device|Disk quota exceeded)(?:: '([^'\n]+)')?")
# With fewer free inodes, these are the reason and not the bytes.
_FEW_FILES = 10
CACHE_VARIABLE = "ETDEPLOY_CACHE_DIR"
_OTHER_CACHE = f"export {CACHE_VARIABLE}=/path/on/a/larger/disk"


def no_room_in(error: BaseException | None) -> OSError | None:
    """The full-disk error that an error is, or was caused by."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _NO_ROOM:
            return error
        error = error.__cause__ or error.__context__
    return None


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Adds the file's name to full-disk errors of the block; those of writes have none.

    Later nobody could say which disk was full: the half-written file is deleted by then.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _NO_ROOM and error.filename is None:
            error.filename = str(path)
        raise


def full_disk(
    error: OSError, cache: Path, log: Path | None = None, doing: str | None = None
) -> BuildError:
    """The error for the user: which file system is full, and what to do about it.

    Args:
        error: ENOSPC or EDQUOT; its filename says where, if it has one.
        cache: The cache folder.
        log: Of the step that failed.
        doing: What failed, for the message: "storing the runner".
    """
    # Copying names the source first.
    name = error.filename2 or error.filename
    place = Path(name) if name else None
    lines = ["Make room and run the same command again: it continues from there."]
    if place is None or _device(place) == _device(cache):
        lines.append("etdeploy clean   shows what is in the cache, and deletes parts of it")
    lines += _elsewhere(place, cache)
    return BuildError(
        f"{f'{doing} failed: the disk is full: ' if doing else ''}{error.strerror}{_where(place)}",
        place=str(place) if place else None,
        remedy="\n".join(lines),
        log=log,
    )


def require_room(folder: Path, least_bytes: int, least_files: int) -> None:
    """Raises the error that a write would soon raise: OSError with ENOSPC and the folder."""
    free = os.statvfs(folder)
    # Some file systems have no fixed number of files and report 0.
    few_files = free.f_files and free.f_favail < least_files
    if few_files or free.f_bavail * free.f_frsize < least_bytes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))


def no_room_told(output: str, *candidates: Path) -> OSError | None:
    """The full-disk error that a program reported in its output.

    Args:
        output: What it printed.
        candidates: Where it writes; the fullest is used if the output names no file.
    """
    match = _MESSAGE.search(output)
    if match is None:
        return None
    place = match[2] or str(fullest(*candidates))
    return OSError(errno.ENOSPC, match[1], place)


def fullest(*folders: Path) -> Path:
    """The folder with the least room left, for a tool that does not say which one was full."""
    return min(folders, key=lambda folder: shutil.disk_usage(_existing(folder)).free)


def _elsewhere(place: Path | None, cache: Path) -> tuple[str, ...]:
    temporary = Path(tempfile.gettempdir())
    if place is None or place.is_relative_to(cache):
        return ("Or move the cache:", _OTHER_CACHE)
    other = "Or name a folder on another disk: --output FOLDER"
    if place.is_relative_to(temporary) and _device(place) == _device(temporary):
        return (other, "and for temporary files: export TMPDIR=/path/on/another/disk")
    return (other,)


def _where(place: Path | None) -> str:
    if place is None:
        return ""
    folder = _existing(place)
    try:
        room, files = shutil.disk_usage(folder), os.statvfs(folder)
    except OSError:
        return ""
    what = f": the file system {_mount(folder)}"
    if files.f_files and files.f_favail < _FEW_FILES:
        return f"{what} has no room for more files (inodes)"
    return f"{what} ({size(room.total)}, {size(room.free)} free now)"


def _mount(folder: Path) -> Path:
    return next((p for p in (folder, *folder.parents) if p.is_mount()), folder)


def _existing(path: Path) -> Path:
    """The path, or the nearest folder above it that exists."""
    return next((p for p in (path, *path.parents) if p.exists()), Path("/"))


def _device(path: Path) -> int | None:
    try:
        return _existing(path).stat().st_dev
    except OSError:
        return None
