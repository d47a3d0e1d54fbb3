"""A thread that has the database to itself, so that nobody else waits for a server that hangs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import Empty, Queue
from typing import Any, TypeVar

R = TypeVar("R")


@dataclass
class _Task:
    action: Callable[[], Any]
    done: threading.Event = field(default_factory=threading.Event)
    result: Any = None
    error: BaseException | None = None

    def run(self) -> None:
        try:
            self.result = self.action()
        except BaseException as error:
            self.error = error
        self.done.set()


class Aside:
    """Does one thing after another in a thread of its own.

    Args:
        every_s: How often `now_and_then` is done.
        now_and_then: Must not raise.
    """

    def __init__(self, every_s: float, now_and_then: Callable[[], None]) -> None:
        self._every_s = every_s
        self._now_and_then = now_and_then
        self._queue: Queue[_Task | None] = Queue()
        # A daemon: a server that never answers must not keep the process from ending.
        self._thread = threading.Thread(target=self._work, name="etdeploy-ledger", daemon=True)
        self._thread.start()

    def do(self, action: Callable[[], R], wait_s: float) -> R:
        """Does something in the thread, and returns what it gives.

        Raises:
            TimeoutError: It has not ended after so long; it goes on, and may still have an effect.
            Exception: What the action raised.
        """
        task = _Task(action)
        self._queue.put(task)
        if not task.done.wait(wait_s):
            raise TimeoutError(f"no answer within {wait_s:g} s")
        if task.error is not None:
            raise task.error
        result: R = task.result
        return result

    def close(self, wait_s: float) -> None:
        """Ends the thread, if it ends within that time."""
        self._queue.put(None)
        self._thread.join(wait_s)

    def _work(self) -> None:
        due = time.monotonic() + self._every_s
        while True:
            try:
                task = self._queue.get(timeout=max(0.0, due - time.monotonic()))
            except Empty:
                pass
            else:
                if task is None:
                    return
                task.run()
            if time.monotonic() >= due:
                self._now_and_then()
                due = time.monotonic() + self._every_s
