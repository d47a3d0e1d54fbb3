"""A full disk: which one it is, and what helps there."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from etdeploy.core.console import size
from etdeploy.core.errors import BuildError

# Left by a file system without room, or a quota that is used up.
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
CACHE_VARIABLE = "ETDEPLOY_CACHE_DIR"
_OTHER_CACHE = f"export {CACHE_VARIABLE}=/path/on/a/larger/disk"


def no_room_in(error: BaseException | None) -> OSError | None:
    """The error of a full disk that an error is, or was caused by."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _NO_ROOM:
            return error
        error = error.__cause__ or error.__context__
    return None


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Names the file in errors of a full disk that come out of the block: those of writes do not.

    Without it nobody can say later which disk was full: what was half-written is deleted by then.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _NO_ROOM and error.filename is None:
            error.filename = str(path)
        raise


def full_disk(error: OSError, cache: Path, log: Path | None = None) -> BuildError:
    """What is said when there is no room: on which file system, and what helps there.

    Args:
        error: With ENOSPC or EDQUOT; its filename says where, if it has one.
        cache: The cache folder.
        log: Of the step that failed.
    """
    place = Path(error.filename) if error.filename else None
    lines = ["Make room and run the same command again: it goes on from there."]
    if place is None or _device(place) == _device(cache):
        lines.append("etdeploy clean   shows what the cache holds, and deletes parts of it")
    lines += [line for line in _elsewhere(place, cache) if line]
    return BuildError(
        f"{error.strerror}{_where(place)}",
        place=str(place) if place else None,
        remedy="\n".join(lines),
        log=log,
    )


def _elsewhere(place: Path | None, cache: Path) -> tuple[str, ...]:
    temporary = Path(tempfile.gettempdir())
    if place is None or place.is_relative_to(cache):
        return ("Or move the cache:", _OTHER_CACHE)
    if place.is_relative_to(temporary):
        return (
            "Or name another folder for temporary files:",
            "export TMPDIR=/path/on/another/disk",
        )
    return ("Or name a folder on another disk: --output FOLDER",)


def _where(place: Path | None) -> str:
    if place is None:
        return ""
    folder = _existing(place)
    try:
        room, total = shutil.disk_usage(folder), os.statvfs(folder)
    except OSError:
        return ""
    # Some file systems have no fixed number of files, and say 0.
    if total.f_files and not total.f_favail:
        return f": the file system {_mount(folder)} has no room for another file (inode)"
    return f": the file system {_mount(folder)} ({size(room.total)}, {size(room.free)} free now)"


def _mount(folder: Path) -> Path:
    return next((p for p in (folder, *folder.parents) if p.is_mount()), folder)


def _existing(path: Path) -> Path:
    """The path, or the nearest folder around it that is there."""
    return next((p for p in (path, *path.parents) if p.exists()), Path("/"))


def _device(path: Path) -> int | None:
    try:
        return _existing(path).stat().st_dev
    except OSError:
        return None
