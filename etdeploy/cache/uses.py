"""Marks what a run uses of the cache while it is active, so that nobody removes it.

A mark is a shared lock on a file in the `locks` folder. The system releases it when the process
ends, however it ends. The file's date is the date of the last use: many systems do not update the
entry's own access time.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from pathlib import Path

from etdeploy.core.files.locks import make_shared, make_sole, open_shared

_LIVE = "live.lock"


def use_lock(locks: Path, kind: str, key: str) -> Path:
    """The file whose lock marks an entry, and whose date is the date of its last use."""
    return locks / f"use-{kind}-{key}.lock"


class Uses:
    """The marks of one run.

    Attributes:
        begun_s: When the run began, in seconds since 1970.
    """

    def __init__(self, locks: Path) -> None:
        self.begun_s = time.time()
        self._locks = locks
        self._handles: dict[Path, int] = {}
        self._mutex = threading.Lock()
        weakref.finalize(self, _close, self._handles)

    def mark(self, kind: str, key: str) -> None:
        """Records the use of an entry, which may not exist yet.

        If the run is marked itself, the entry stays marked until `release`.
        """
        path = use_lock(self._locks, kind, key)
        if self.is_live:
            self._mark(path)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()

    def mark_live(self) -> None:
        """Marks the run as active, to keep everything that is not marked individually."""
        self._mark(self._locks / _LIVE)

    def has(self, path: Path) -> bool:
        """Whether this run has marked the file."""
        return path in self._handles

    @property
    def is_live(self) -> bool:
        """Whether this run has marked itself."""
        return self.has(self._locks / _LIVE)

    def is_alone(self) -> bool:
        """Whether no other run is active; if so, none can start until `share` or `release_live`."""
        self.mark_live()
        return make_sole(self._handles[self._locks / _LIVE])

    def share(self) -> None:
        """Lets other runs start."""
        make_shared(self._handles[self._locks / _LIVE])

    def release_live(self) -> None:
        """Removes the mark of this run; others may start."""
        with self._mutex:
            handle = self._handles.pop(self._locks / _LIVE, None)
        if handle is not None:
            os.close(handle)

    def release(self) -> None:
        """Removes all marks."""
        with self._mutex:
            _close(self._handles)

    def _mark(self, path: Path) -> None:
        with self._mutex:
            if path not in self._handles:
                handle = open_shared(path)
                self._handles[path] = handle
                os.utime(handle)


def _close(handles: dict[Path, int]) -> None:
    while handles:
        os.close(handles.popitem()[1])
