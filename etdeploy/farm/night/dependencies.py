"""What a night needs beside an engine; a test brings its own clock, ledger and devices."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from etdeploy.core import cancel
from etdeploy.farm.model import AttemptResult, Offer, Standing, Visit, VisitState
from etdeploy.farm.night.planning import AttemptDurations
from etdeploy.farm.spec.matrix import NightPlan
from etdeploy.farm.spec.model import Farm
from etdeploy.history.nights import Quarantined, Reservation

if TYPE_CHECKING:
    from etdeploy.farm.work.prepare import PreparedParcels


class Clock(Protocol):
    """The time, which a simulation sets itself."""

    def now(self) -> datetime:
        """Date and time, aware of its zone; somebody may set it."""
        ...

    def seconds(self) -> float:
        """Seconds since some moment, which nobody sets."""
        ...

    def sleep(self, seconds: float) -> None:
        """Waits."""
        ...


class LedgerLike(Protocol):
    """Where the visits of a night are kept, so that it can be resumed after a crash.

    Every method may be called again with the same values, and changes nothing then.
    """

    def open_night(
        self, farm_name: str, digest: str, now: datetime
    ) -> tuple[str, Sequence[VisitState]]:
        """The night that is not finished, with its visits; else a new one without any.

        No visit is running: attempts that were under way are lost ones.
        """
        ...

    def plan(self, visits: Sequence[Visit]) -> None:
        """Adds visits."""
        ...

    def running(self, visit: str, attempt: int, identity: str, host: str, device: str = "") -> None:
        """An attempt begins."""
        ...

    def ended(self, ending: AttemptResult) -> None:
        """An attempt ended; the record of one that counts goes to the history too."""
        ...

    def give_up(self, visit: str, standing: Standing, reason: str) -> None:
        """A visit failed or was missed."""
        ...

    def finish(self, night: str) -> None:
        """The night is over."""
        ...


class ShelfLike(Protocol):
    """Whose the devices are, and which are set aside; a method may raise EtdeployError."""

    def reservations(self) -> Sequence[Reservation]:
        """Those that hold now."""
        ...

    def quarantined(self) -> Sequence[Quarantined]:
        """All that are set aside."""
        ...

    def set_aside(self, offer: Offer, reason: str) -> None:
        """Sets a device aside until a person releases it."""
        ...


Prepare = Callable[[Mapping[str, Sequence[Offer]]], "PreparedParcels"]
"""Exports and builds for the offers of each recipe, by its label."""


Plan = Callable[[Farm, str, Sequence[Offer], "float | None"], NightPlan]
"""The visits for devices: `etdeploy.farm.spec.matrix.plan_night`."""

Headline = Callable[[AttemptResult], "float | None"]
"""The number that a record is compared by; None where it has none."""


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


@dataclass(frozen=True)
class Intervals:
    """How often the night looks around, in seconds.

    Attributes:
        wait_s: At most so long it waits for an attempt to end.
        look_s: After so long it asks again which devices are there.
    """

    wait_s: float = 1.0
    look_s: float = 10.0


@dataclass(frozen=True)
class NightDependencies:
    """What a night is done with beside its engine and ledger.

    Attributes:
        prepare: Exports and builds.
        shelf: Whose the devices are.
        plan: The visits for devices.
        headline: The number of a record.
        times: How long attempts took in earlier nights.
        background: For what takes minutes; None for threads.
        opened: When the window opened; None without a window.
        until: When nothing may begin any more; None for never.
        intervals: How often the night looks around.
        named: Recipes and groups that no device can measure, as far as that was told before.
    """

    prepare: Prepare
    shelf: ShelfLike
    plan: Plan
    headline: Headline
    times: AttemptDurations = field(default_factory=AttemptDurations)
    background: Background | None = None
    opened: datetime | None = None
    until: datetime | None = None
    intervals: Intervals = Intervals()
    named: frozenset[tuple[str, str]] = frozenset()
