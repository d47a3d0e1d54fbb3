"""Files that are written completely or not at all, and paths that stay inside their folder."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from etdeploy.core.files.disk import naming
from etdeploy.core.files.leftovers import claim, remove_tree, working_folder

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO (named pipe)",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def write_atomic(path: Path, content: str | bytes) -> None:
    """Replaces `path` in one step; a reader sees the old content or the new."""
    data = content.encode() if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    work = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    # Not mkstemp, whose files only their owner may read.
    handle = os.open(work, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with naming(path), os.fdopen(handle, "wb") as stream:
            claim(handle)
            stream.write(data)
        work.replace(path)
    except BaseException:
        work.unlink(missing_ok=True)
        raise


def copy_file(source: Path, target: Path) -> None:
    """Replaces `target` by a copy in one step."""
    work = target.with_name(f".{target.name}.{secrets.token_hex(6)}")
    try:
        with naming(target):
            shutil.copyfile(source, work)
        work.replace(target)
    finally:
        work.unlink(missing_ok=True)


def write_if_changed(path: Path, content: str) -> bool:
    """Writes only changed content, so that an unchanged file keeps its date for build tools."""
    if path.is_file() and path.read_text() == content:
        return False
    write_atomic(path, content)
    return True


def read_text(path: Path) -> str:
    """The text of a file; empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def not_regular(path: Path) -> str | None:
    """What a path is instead of a regular file, like "a folder"; None for a regular file.

    Reading anything else may block forever (a FIFO), never end (a device), or make no sense.

    Raises:
        OSError: It does not exist, or cannot be accessed.
    """
    return _other_than_regular(path.stat().st_mode)


def open_regular(path: Path) -> BinaryIO:
    """Opens a file that a user named for reading; never blocks.

    Raises:
        OSError: It cannot be read, or is not a regular file; its strerror says what it is.
    """
    # Opening some devices has side effects, so they are not even opened.
    _require_regular(path, path.stat().st_mode)
    # It may be another file now.
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        _require_regular(path, os.fstat(handle).st_mode)
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def _require_regular(path: Path, mode: int) -> None:
    if what := _other_than_regular(mode):
        raise OSError(errno.EINVAL, f"this is {what}, not a regular file", str(path))


def _other_than_regular(mode: int) -> str | None:
    if stat.S_ISREG(mode):
        return None
    return _KINDS.get(stat.S_IFMT(mode), "not a file")


@contextmanager
def new_folder(final: Path) -> Iterator[Path]:
    """Yields an empty folder beside `final` that replaces it when the block succeeds.

    The old `final` is deleted with everything in it: only for folders of the cache.
    """
    final.parent.mkdir(parents=True, exist_ok=True)
    with working_folder(final.parent, f".{final.name}.") as work:
        work.chmod(0o755)
        old = work.with_name(f"{work.name}.old")
        try:
            with naming(work):
                yield work
            if final.is_symlink() or final.exists():
                final.rename(old)
            try:
                work.rename(final)
            except BaseException:
                if old.exists():
                    old.rename(final)
                raise
        finally:
            remove_tree(old)


def tree_size(path: Path) -> int:
    """Bytes of a file, or of all files below a folder; a file with several names counts once."""
    total, seen = 0, set()
    for file in (path, *path.rglob("*")):
        try:
            info = file.lstat()
        except OSError:  # it was just removed
            continue
        if not stat.S_ISDIR(info.st_mode) and (info.st_dev, info.st_ino) not in seen:
            seen.add((info.st_dev, info.st_ino))
            total += info.st_size
    return total


def inside(folder: Path, relative: str) -> Path:
    """`folder / relative`, or ValueError if that is not below `folder`."""
    path = (folder / relative).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise ValueError(f"{relative!r} leads out of {folder}")
    return path


def folder_files(folder: Path) -> list[str]:
    """Every file below `folder`, as sorted POSIX paths relative to it."""
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
