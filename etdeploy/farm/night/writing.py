"""Writes events into the history's database, each in a transaction of its own."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from etdeploy.core.errors import UsageError
from etdeploy.farm.model import AttemptResult, Fate, Standing
from etdeploy.farm.night import rules
from etdeploy.farm.night.rules import (
    AttemptEnded,
    Began,
    Closed,
    Event,
    GivenUp,
    Opened,
    Planned,
)
from etdeploy.history.nights import ABANDONED, CoordinatorProcess, KeptNight, KeptVisit
from etdeploy.history.place import HistoryLocation

if TYPE_CHECKING:
    from etdeploy.bench.records.record import RunRecord
    from etdeploy.history.store.store import Connection, Store

_ANOTHER = "another night of this farm began"


class DatabaseConnection:
    """The open database; after an error it is opened anew, for its server may have been started."""

    def __init__(self, place: HistoryLocation) -> None:
        self._place = place
        self._stack = ExitStack()
        self._store: Store | None = None

    def store(self) -> Store:
        """The database, opened if it is not."""
        from etdeploy.history.store.store import open_store

        if self._store is None:
            self._store = self._stack.enter_context(open_store(self._place))
        return self._store

    def close(self) -> None:
        """Closes it; the next use opens it again."""
        self._store = None
        self._stack.close()


def write(
    store: Store, event: Event, tell: Callable[[str], None], fence: Fence | None = None
) -> KeptVisit | None:
    """Writes an event; one that is there changes nothing."""
    record = _record_of(event.ending, tell) if isinstance(event, AttemptEnded) else None
    with store.transaction(writes=True) as connection:
        if fence:
            fence.require(connection)
        return _write(connection, event, record, tell)


def _write(
    connection: Connection, event: Event, record: RunRecord | None, tell: Callable[[str], None]
) -> KeptVisit | None:
    from etdeploy.history.store import nights
    from etdeploy.history.store.store import add_record

    if isinstance(event, Opened):
        nights.add_night(connection, event.night)
        nights.add_visits(connection, event.night.id, event.visits)
        return None
    if isinstance(event, Planned):
        nights.add_visits(connection, event.night, event.visits)
        return None
    if isinstance(event, Closed):
        nights.end_night(connection, event.night, event.at, event.outcome)
        return None
    if isinstance(event, AttemptEnded):
        kept = nights.change_visit(connection, event.ending.visit, partial(_ended, event=event))
        # With the attempt or not at all: so each one that counts is in the history, and once.
        if kept and record and rules.counts(kept, event.ending):
            add_record(connection, record)
    else:
        kept = nights.change_visit(connection, event.visit, partial(_changed, event=event))
    if kept is None:
        visit = event.ending.visit if isinstance(event, AttemptEnded) else event.visit
        tell(f"the history knows no visit {visit}, of which something was to be noted")
    return kept


def _ended(kept: KeptVisit, event: AttemptEnded) -> KeptVisit:
    return rules.ended(kept, event)


def _changed(kept: KeptVisit, event: Began | GivenUp) -> KeptVisit:
    return rules.began(kept, event) if isinstance(event, Began) else rules.given_up(kept, event)


def _record_of(ending: AttemptResult, tell: Callable[[str], None]) -> RunRecord | None:
    if ending.fate is not Fate.DONE or ending.record is None:
        return None
    from etdeploy.bench.records.stored import load_run

    try:
        return load_run(Path(ending.record)).record
    except UsageError as error:
        tell(f"a record is not in the history: {error}")
        return None


class TakenError(UsageError):
    """Another coordinator has the farm."""


class Fence:
    """That a farm is this coordinator's.

    Args:
        farm: Its name.
        mine: This process.
    """

    def __init__(self, farm: str, mine: CoordinatorProcess) -> None:
        self.farm, self.mine = farm, mine

    def take(self, connection: Connection, *, anew: bool = True) -> None:
        """Takes the farm; or, if it was this process's before, says that this still lives."""
        from etdeploy.history.store import nights

        if other := nights.take(connection, self.farm, self.mine, anew=anew):
            raise taken(self.farm, other)

    def require(self, connection: Connection) -> None:
        """Makes sure that nobody took it, until the transaction ends."""
        from etdeploy.history.store import nights

        other = nights.holder(connection, self.farm)
        if other is None:
            self.take(connection)
        elif other.token != self.mine.token:
            raise taken(self.farm, other)

    def give_back(self, connection: Connection) -> None:
        """Lets another coordinator have it at once."""
        from etdeploy.history.store import nights

        nights.give_back(connection, self.farm, self.mine.token)


def taken(farm: str, by: CoordinatorProcess) -> TakenError:
    """Says who runs a farm, and where."""
    host = by.who.rpartition("@")[2]
    return TakenError(
        f"{by.who} is running the farm {farm}: process {by.process} on {host}, since {by.since}",
        remedy=f"Wait for its end:  etdeploy farm status\nOr end it there:  kill {by.process}",
    )


def abandon_others(connection: Connection, farm: str, going_on: str, at: str) -> list[KeptNight]:
    """Ends all nights of a farm that nobody goes on with, and returns them.

    What such a night did not measure was missed.
    """
    from etdeploy.history.store import nights

    left = [n for n in nights.unfinished_nights(connection, farm) if n.id != going_on]
    open_ = (Standing.WAITING, Standing.RUNNING)
    for night in left:
        nights.settle_visits(connection, night.id, open_, Standing.MISSED, _ANOTHER)
        nights.end_night(connection, night.id, at, ABANDONED)
    return left
