"""What the tasks of one run share: this machine's cores, devices, checkouts.

A measurement must not be disturbed by the run's own work, and work for many jobs must not fill the
memory. A task waits here in its own thread, so the others go on.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from etdeploy.core import cancel
from etdeploy.core.values import Kind

# How often a waiting task looks whether the run was asked to stop.
_POLL_S = 0.2
# An export or a build of a model of ordinary size stays below this.
_HEAVY_BYTES = 3 << 30
_MOST_HEAVY = 4


class Load(Kind):
    """What a step does to this machine while it runs."""

    LIGHT = "light"
    """Next to nothing."""
    BUSY = "busy"
    """It uses the cores: never beside a measurement on them."""
    HEAVY = "heavy"
    """The same, and much memory: only so many at once."""
    MEASURES = "measures"
    """It measures on this machine's cores: nothing else may use them."""


def heavy_at_once() -> int:
    """How many exports and builds this machine does at once: by cores and memory, 4 at most."""
    try:
        memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):  # this system does not say
        memory_bytes = _HEAVY_BYTES
    return max(1, min(_MOST_HEAVY, os.cpu_count() or 1, memory_bytes // _HEAVY_BYTES))


class Slots:
    """Who uses what right now.

    Exports and builds go before measurements on the same cores: a measurement begins when none is
    under way. There is only so much of them, so it cannot wait forever.

    Args:
        heavy: How many heavy steps may run at once.
    """

    def __init__(self, heavy: int) -> None:
        self._heavy = heavy
        self._loads: list[Load] = []
        self._in_use: set[str] = set()
        self._changed = threading.Condition()

    @contextmanager
    def load(self, load: Load) -> Iterator[None]:
        """Waits until a step with that load may run, and counts it while the block runs.

        Raises:
            Interrupted: The run was stopped while waiting.
        """
        with self._changed:
            self._wait(lambda: self._has_room(load))
            self._loads.append(load)
        try:
            yield
        finally:
            with self._changed:
                self._loads.remove(load)
                self._changed.notify_all()

    @contextmanager
    def alone(self, name: str | None) -> Iterator[None]:
        """Waits until nobody else uses what has that name; None for nothing to wait for.

        Raises:
            Interrupted: The run was stopped while waiting.
        """
        if name is None:
            yield
            return
        with self._changed:
            self._wait(lambda: name not in self._in_use)
            self._in_use.add(name)
        try:
            yield
        finally:
            with self._changed:
                self._in_use.remove(name)
                self._changed.notify_all()

    def _has_room(self, load: Load) -> bool:
        if load is Load.LIGHT:
            return True
        if Load.MEASURES in self._loads:
            return False
        if load is Load.MEASURES:
            return not {Load.BUSY, Load.HEAVY} & set(self._loads)
        return load is Load.BUSY or self._loads.count(Load.HEAVY) < self._heavy

    def _wait(self, ready: Callable[[], bool]) -> None:
        while not ready():
            cancel.checkpoint()
            self._changed.wait(_POLL_S)
        cancel.checkpoint()
