"""What a night needs: a clock, a ledger, the device pool, an engine. Tests bring their own."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from etdeploy.core import cancel
from etdeploy.core.errors import EtdeployError
from etdeploy.device_pool import active_reservations, quarantine_device, quarantined_devices
from etdeploy.farm.engine.base import Engine
from etdeploy.farm.model import AttemptResult, AvailableDevice, Standing, Visit, VisitState
from etdeploy.farm.night.ledger import Ledger
from etdeploy.farm.night.scheduler import AttemptDurations
from etdeploy.farm.spec.matrix import NightPlan
from etdeploy.farm.spec.model import Farm
from etdeploy.graph.tasks.steps import Slots
from etdeploy.history.location import HistoryLocation
from etdeploy.history.nights import KnownDevice, Quarantined, Reservation, host_of

if TYPE_CHECKING:
    from etdeploy.farm.work.prepare import PreparedArtifacts


class Clock(Protocol):
    """The time, which a simulation sets itself."""

    def now(self) -> datetime:
        """Date and time, aware of its zone; somebody may set it."""
        ...

    def seconds(self) -> float:
        """Seconds since some moment, which nobody sets."""
        ...

    def sleep(self, seconds: float) -> None: ...


class NightLedger(Protocol):
    """Where a night's visits are stored, so that it can be resumed after a crash: `Ledger`.

    Every method may be called again with the same values, and changes nothing then.
    """

    def open_night(
        self, farm_name: str, digest: str, now: datetime
    ) -> tuple[str, Sequence[VisitState]]: ...

    def plan(self, visits: Sequence[Visit]) -> None: ...

    def running(
        self, visit: str, attempt: int, identity: str, host: str, device: str = ""
    ) -> None: ...

    def ended(self, ending: AttemptResult) -> None: ...

    def give_up(self, visit: str, standing: Standing, reason: str) -> None: ...

    def finish(self, night: str) -> None: ...


class DevicePool(Protocol):
    """Reservations and quarantine; a method may raise EtdeployError."""

    def reservations(self) -> Sequence[Reservation]: ...

    def quarantined(self) -> Sequence[Quarantined]: ...

    def quarantine_device(self, offer: AvailableDevice, reason: str) -> None: ...


Prepare = Callable[[Mapping[str, Sequence[AvailableDevice]]], "PreparedArtifacts"]
"""Exports and builds for the offers of each recipe, by its label."""


Plan = Callable[[Farm, str, Sequence[AvailableDevice], "float | None"], NightPlan]
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
        wait_s: How long the night waits for an attempt to end before it looks around.
        look_s: How often it asks which devices are there.
        named: Recipes and groups that no device can measure, as far as that was told before.
    """

    prepare: Prepare
    shelf: DevicePool
    plan: Plan
    headline: Headline
    times: AttemptDurations = field(default_factory=AttemptDurations)
    background: Background | None = None
    opened: datetime | None = None
    until: datetime | None = None
    wait_s: float = 1.0
    look_s: float = 10.0
    named: frozenset[tuple[str, str]] = frozenset()


_EARLIER_NIGHTS = 5

Progress = Callable[[str, str, "float | None"], None]
"""Called with a visit, what is done for it now, and how far that is."""


class StoreDevicePool:
    """Reservations and quarantine in the history."""

    def __init__(self, place: HistoryLocation, by: str) -> None:
        self._place, self._by = place, by

    def reservations(self) -> Sequence[Reservation]:
        """Those that hold now."""
        return active_reservations(self._place)

    def quarantined(self) -> Sequence[Quarantined]:
        """All that are quarantined."""
        return quarantined_devices(self._place)

    def quarantine_device(self, offer: AvailableDevice, reason: str) -> None:
        """Quarantines a device until a person releases it."""
        host = host_of(offer.lock, offer.host)
        device = KnownDevice(identity=offer.lock, device=offer.name, host=host)
        quarantine_device(self._place, device, reason, self._by)


def headline_of(ending: AttemptResult) -> float | None:
    """The number that a record is compared by; None where it has none."""
    from etdeploy.bench.records.stored import load_run
    from etdeploy.history.series import HEADLINES, read_metrics

    if ending.record is None:
        return None
    metrics = read_metrics(load_run(Path(ending.record)).record)
    return next((metrics[name] for name in HEADLINES if name in metrics), None)


def earlier_times(ledger: Ledger, farm: Farm, tell: Callable[[str], None]) -> AttemptDurations:
    """How long attempts took in earlier nights; a history that cannot be read makes all alike.

    One that is down is not told of: the night that opens next does that.
    """
    from etdeploy.history.store.errors import UnreachableError

    times = AttemptDurations()
    try:
        for night in ledger.nights(farm.name, _EARLIER_NIGHTS):
            times.learn(ledger.states(night.id))
    except (UnreachableError, TimeoutError):
        return times
    except EtdeployError as error:
        tell(f"how long attempts took before is not known: {error}")
    return times


@contextmanager
def open_engine(farm: Farm, output: Path, slots: Slots, told: Progress) -> Iterator[Engine]:
    """The engine of a farm: of this host, of others, or of both."""
    engine = _engine(farm, output, slots, told)
    try:
        yield engine
    finally:
        engine.close()


def _engine(farm: Farm, output: Path, slots: Slots, told: Progress) -> Engine:
    from etdeploy.farm.engine.local import LocalEngine

    if farm.hosts is None:
        return LocalEngine(output, pools=farm.pools, slots=slots, told=told)
    from etdeploy.farm.engine.base import JoinedEngine
    from etdeploy.farm.engine.cluster import ClusterEngine

    others = ClusterEngine(farm.hosts, output)
    if not farm.hosts.here:
        return others
    here = LocalEngine(output, pools=farm.pools, slots=slots, told=told)
    return JoinedEngine(here, here.host, others)


_SLICE_S = 0.2


class SystemClock:
    """This machine's clock."""

    def now(self) -> datetime:
        """Date and time, in UTC."""
        return datetime.now(timezone.utc)

    def seconds(self) -> float:
        """Seconds that pass evenly, whoever sets the date."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Waits; not once the run is asked to stop."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and not cancel.requested():
            time.sleep(min(left, _SLICE_S))
