"""The parts of a real night: its shelf in the history, its engine, the numbers of its records."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path

from etdeploy.core import cancel
from etdeploy.core.errors import EtdeployError
from etdeploy.device_pool.reservations import (
    Quarantined,
    Reservation,
    Shelved,
    active,
    quarantined_devices,
    set_aside,
)
from etdeploy.farm.engine.base import Engine
from etdeploy.farm.model import AttemptResult, Offer
from etdeploy.farm.night.ledger import Ledger
from etdeploy.farm.night.planning import AttemptDurations
from etdeploy.farm.spec.model import Farm
from etdeploy.graph.tasks.steps import Slots
from etdeploy.history.location import HistoryLocation

_EARLIER_NIGHTS = 5

Progress = Callable[[str, str, "float | None"], None]
"""Called with a visit, what is done for it now, and how far that is."""


class StoreShelf:
    """Reservations and quarantine in the history.

    Args:
        place: The history.
        by: Who sets devices aside.
    """

    def __init__(self, place: HistoryLocation, by: str) -> None:
        self._place, self._by = place, by

    def reservations(self) -> Sequence[Reservation]:
        """Those that hold now."""
        return active(self._place)

    def quarantined(self) -> Sequence[Quarantined]:
        """All that are set aside."""
        return quarantined_devices(self._place)

    def set_aside(self, offer: Offer, reason: str) -> None:
        """Sets a device aside until a person releases it."""
        from etdeploy.history.nights import host_of

        host = host_of(offer.lock, offer.host)
        device = Shelved(identity=offer.lock, device=offer.name, host=host)
        set_aside(self._place, device, reason, self._by)


def headline_of(ending: AttemptResult) -> float | None:
    """The number that a record is compared by; None where it has none.

    Raises:
        UsageError: The record cannot be read.
    """
    from etdeploy.bench.records.stored import load_run
    from etdeploy.history.series import HEADLINES, metrics_of

    if ending.record is None:
        return None
    metrics = metrics_of(load_run(Path(ending.record)).record)
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
    """The engine of a farm: of this host, of others, or of both.

    Args:
        farm: Says which hosts.
        output: The folder for records.
        slots: What exports and measurements of this host share.
        told: Progress of attempts on this host.

    Raises:
        UsageError: Nothing can listen where farm.yaml says.
        BuildError: What several hosts need is not installed.
    """
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
    from etdeploy.farm.engine.dask.cluster import ClusterEngine

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
