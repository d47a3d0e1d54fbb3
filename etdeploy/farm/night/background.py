"""Work that takes minutes while the night goes on: recovery, and exports for new devices."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, Protocol

from etdeploy.core import cancel


class Background(Protocol):
    """Runs work beside the night; what it gives is fetched by the night."""

    def start(self, work: Callable[[], Any]) -> None:
        """Begins; work that raises gives the exception."""
        ...

    def finished(self) -> list[Any]:
        """What ended since the last call: results and exceptions."""
        ...

    @property
    def active(self) -> int:
        """How many are under way, or were not fetched."""
        ...


class BackgroundThreads:
    """Each work in a thread of its own, which belongs to the same run: Ctrl-C stops it too."""

    def __init__(self) -> None:
        self._flag = cancel.current()
        self._results: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.active = 0

    def start(self, work: Callable[[], Any]) -> None:
        """Begins a thread."""
        self.active += 1
        threading.Thread(target=self._run, args=(work,), daemon=True).start()

    def _run(self, work: Callable[[], Any]) -> None:
        with cancel.bound(self._flag):
            try:
                self._results.put(work())
            except BaseException as error:
                self._results.put(error)

    def finished(self) -> list[Any]:
        """What ended since the last call."""
        found = []
        while not self._results.empty():
            found.append(self._results.get())
            self.active -= 1
        return found
