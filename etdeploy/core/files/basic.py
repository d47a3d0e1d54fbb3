"""Files that are written completely or not at all, and paths that stay inside their folder."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from etdeploy.core.console import size
from etdeploy.core.errors import BuildError

PACKAGE = Path(__file__).resolve().parents[2]
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO (named pipe)",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def resource_folder(name: str) -> Path:
    """The folder `recipes`, `templates` or `toolchains`.

    In a checkout they are at the top of the tree; a wheel has them in `etdeploy/data`.
    """
    installed = PACKAGE / "data" / name
    return installed if installed.is_dir() else PACKAGE.parent / name


def write_atomic(path: Path, content: str | bytes | Iterable[bytes]) -> None:
    """Replaces `path` in one step; a reader sees the old content or the new."""
    data = content.encode() if isinstance(content, str) else content
    parts = (data,) if isinstance(data, bytes) else data
    path.parent.mkdir(parents=True, exist_ok=True)
    work = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    # Not mkstemp, whose files only their owner may read.
    handle = os.open(work, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with annotate_oserror(path), os.fdopen(handle, "wb") as stream:
            claim(handle)
            stream.writelines(parts)
        work.replace(path)
    except BaseException:
        work.unlink(missing_ok=True)
        raise


def copy_file(source: Path, target: Path) -> None:
    """Replaces `target` by a copy in one step."""
    work = target.with_name(f".{target.name}.{secrets.token_hex(6)}")
    try:
        with annotate_oserror(target):
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
            with annotate_oserror(work):
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


# The errors of a full file system and an exhausted quota.
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
# The C library's messages, which Python and compilers print; Python adds the file.
_MESSAGE = re.compile(r"(No space left on device|Disk quota exceeded)(?:: '([^'\n]+)')?")
# With fewer free inodes, these are the reason and not the bytes.
_FEW_FILES = 10
CACHE_VARIABLE = "ETDEPLOY_CACHE_DIR"
_OTHER_CACHE = f"export {CACHE_VARIABLE}=/path/on/a/larger/disk"


def find_disk_full(error: BaseException | None) -> OSError | None:
    """The full-disk error that an error is, or was caused by."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _NO_ROOM:
            return error
        error = error.__cause__ or error.__context__
    return None


@contextmanager
def annotate_oserror(path: Path) -> Iterator[None]:
    """Adds the file's name to full-disk errors of the block; those of writes have none.

    Later nobody could say which disk was full: the half-written file is deleted by then.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _NO_ROOM and error.filename is None:
            error.filename = str(path)
        raise


def disk_full_error(
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


def find_disk_full_in_output(output: str, *candidates: Path) -> OSError | None:
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
