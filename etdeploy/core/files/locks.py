"""Locks between processes; each is held by a context manager."""

from __future__ import annotations

import errno
import fcntl
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from etdeploy.core.cancel import checkpoint
from etdeploy.core.files.basic import annotate_oserror, find_disk_full
from etdeploy.core.values import Progress, silent

_POLL_S = 0.2
# The errors of file systems without locks.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


@contextmanager
def exclusive(
    path: Path, what: str, progress: Progress = silent, timeout_s: float | None = None
) -> Iterator[None]:
    """Holds the lock file `path`; waits for another run that holds it, and says so.

    Args:
        path: The lock file; its folder is created if missing.
        what: What is shared, for the message: "device host", "program 12ab".
        progress: Called once if the run has to wait.
        timeout_s: How long to wait at most; None for as long as it takes.

    Raises:
        TimeoutError: The other run still held it after that time.
        Interrupted: The run was stopped while waiting.
    """
    from filelock import FileLock, Timeout

    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path, is_singleton=False, thread_local=False)
    reported = False
    began = time.monotonic()
    while True:
        checkpoint()
        try:
            lock.acquire(timeout=0 if not reported else _POLL_S)
            break
        except Timeout:
            if timeout_s is not None and time.monotonic() - began >= timeout_s:
                raise TimeoutError(f"another run uses {what}{_process(*_noted(path))}") from None
            if not reported:
                process, command = _noted(path)
                who = _holder(process, command)
                progress(f"waiting for {who} that uses {what}{_process(process, path=path)}")
                reported = True
    try:
        _note_holder(path)
        yield
    finally:
        lock.release()


@contextmanager
def short_lock(path: Path) -> Iterator[None]:
    """Holds a lock that nobody holds for long, also while the run is being stopped.

    Raises:
        OSError: The lock file cannot be made. A file system without locks is done without.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
        yield
    finally:
        os.close(handle)


def open_shared(path: Path) -> int:
    """Takes a lock that others may hold at the same time, and returns the open file.

    The lock lasts until the file is closed or the process ends. An exclusive holder has it only for
    a moment (`try_lock`), and is waited for.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        while not _taken(handle, fcntl.LOCK_SH):
            checkpoint()
            time.sleep(_POLL_S)
    except BaseException:
        os.close(handle)
        raise
    return handle


def try_upgrade_lock(handle: int) -> bool:
    """Makes the lock of `open_shared` exclusive; False if others hold it too."""
    if _taken(handle, fcntl.LOCK_EX):
        return True
    downgrade_lock(handle)  # A failed change may have released it.
    return False


def downgrade_lock(handle: int) -> None:
    """Makes the lock shared again."""
    _taken(handle, fcntl.LOCK_SH)


@contextmanager
def try_lock(path: Path) -> Iterator[bool]:
    """Takes an exclusive lock without waiting; yields whether nobody else holds it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        if find_disk_full(error) is None:
            raise
        yield True  # A lock without a file is held by nobody.
        return
    try:
        yield _taken(handle, fcntl.LOCK_EX)
    finally:
        os.close(handle)


def _taken(handle: int, kind: int) -> bool:
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        # Other holders cannot be seen: count as shared, so that nothing is removed.
        return kind == fcntl.LOCK_SH
    return True


def _note_holder(path: Path) -> None:
    note = path.with_suffix(".pid")
    with annotate_oserror(note):
        note.write_text(f"{os.getpid()} {_command()}\n")


def _command() -> str:
    """What this process was started for: `etdeploy chat`."""
    name = Path(sys.argv[0]).name
    verb = next((word for word in sys.argv[1:2] if not word.startswith("-")), "")
    return f"{name} {verb}".strip() if name == "etdeploy" else ""


def _holder(process: str, command: str) -> str:
    """Who holds a lock that a process has noted."""
    if process == str(os.getpid()):
        return "another task of this run"
    return f"another run, `{command}`," if command else "another run"


def _process(process: str, command: str = "", path: Path | None = None) -> str:
    """That process in brackets; empty for this one, and if it is not known."""
    if process in ("", str(os.getpid())):
        return ""
    words = [f"process {process}", *([command] if command else [])]
    if path is not None:
        with suppress(OSError):
            held_s = max(0.0, time.time() - path.with_suffix(".pid").stat().st_mtime)
            words.append(f"for {held_s:.0f} s" if held_s < 100 else f"for {held_s / 60:.0f} min")
    return f" ({', '.join(words)})"


def _noted(path: Path) -> tuple[str, str]:
    """The process that holds a lock, and its command; empty where that is not known."""
    try:
        process, _, command = path.with_suffix(".pid").read_text().strip().partition(" ")
    except OSError:
        return "", ""
    return process, command


@contextmanager
def exclusive_folder(folder: Path, what: str, progress: Progress = silent) -> Iterator[None]:
    """Holds a folder; waits for another run that holds it, and says so.

    File systems without such locks, like some network ones, are ignored: runs with the same cache
    still have that cache's own lock.
    """
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        reported = False
        while not _taken_folder(handle):
            if not reported:
                progress(f"waiting for another run that uses {what}")
                reported = True
            checkpoint()
            time.sleep(_POLL_S)
        yield
    finally:
        os.close(handle)  # which releases the lock


def _taken_folder(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
