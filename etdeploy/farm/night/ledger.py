"""The ledger of a farm: its nights and visits in the history's database, whatever happens to that.

While the database is down, what happens is written to a file, and brought in when it answers again.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from etdeploy.core import cancel, console
from etdeploy.core.errors import StoreError
from etdeploy.farm.model import AttemptResult, Fate, Standing, Visit, VisitState
from etdeploy.farm.night import memory, rules
from etdeploy.farm.night.database_writer import Post
from etdeploy.farm.night.memory import NightCache
from etdeploy.farm.night.rules import AttemptEnded, Began, Closed, Event, GivenUp, Opened, Planned
from etdeploy.farm.night.writing import Fence, abandon_others
from etdeploy.history.nights import FINISHED, KeptNight, KeptVisit, storable
from etdeploy.history.place import HistoryLocation, data_folder

if TYPE_CHECKING:
    from etdeploy.history.store.store import Connection, Store

# A night that has begun earlier than this before is not gone on with: the next one is due.
_RESUMED_WITHIN_S = 20 * 3600.0
# How long the beginning of a night waits for a database that is down, in seconds.
_OPENING_S = 600.0
_READ_S = 60.0
# How long the end of one waits for a database that answers, and has much to take in.
_DRAIN_S = 600.0
_AGAIN_S = 2.0
_LOOK_S = 10.0


class OpenedNight(NamedTuple):
    """A night that is going on, with the states of the visits that it has so far."""

    night: str
    states: tuple[VisitState, ...]


class Ledger:
    """The nights of farms.

    Every method may be called again with the same values, and changes nothing then. A night is
    open from `open_night` to the end of the `with` block, for one process over all hosts.

    Args:
        place: The history.
        folder: For what waits for a database that is down; the user's data folder by default.
        tell: Is told what a person should know, in a sentence.
        now: The time that is noted; a simulation has its own.
        resumed_within_s: How old a night may be that is gone on with.
        resumes: Whether an unfinished night is gone on with at all.
        opening_s: How long the beginning of a night waits for the database.
    """

    def __init__(
        self,
        place: HistoryLocation,
        *,
        folder: Path | None = None,
        tell: Callable[[str], None] = console.warn,
        now: Callable[[], datetime] = lambda: datetime.now(timezone.utc),
        resumed_within_s: float = _RESUMED_WITHIN_S,
        resumes: bool = True,
        opening_s: float = _OPENING_S,
    ) -> None:
        self.place = place
        self._folder = folder or data_folder()
        self._tell, self._now, self._resumes = tell, now, resumes
        self._resumed_within, self._opening_s = timedelta(seconds=resumed_within_s), opening_s
        self._memory = NightCache()
        self._night: KeptNight | None = None
        self._fence: Fence | None = None
        self._stack = ExitStack()
        self._post = Post(place, tell, self._snapshot)

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Lets another process run the farm; what waits for the database stays in its file."""
        self._post.close()
        self._stack.close()

    def claim(self, farm_name: str) -> None:
        """Holds a farm before its night begins, which may be hours later.

        On other hosts it is held only if the history can be used now.

        Raises:
            TakenError: Another process is running this farm.
        """
        fence = self._hold(farm_name)
        if self.place.file and not self.place.file.exists():
            return

        def take(store: Store) -> None:
            with store.transaction(writes=True) as connection:
                fence.take(connection)

        try:
            self._post.read(take, _LOOK_S)
        except (StoreError, TimeoutError):
            return  # the beginning of the night waits for it
        self._post.hold(fence)

    def _hold(self, farm_name: str) -> Fence:
        if self._fence is None:
            mine = self._stack.enter_context(memory.claimed(self._spool(farm_name), farm_name))
            self._fence = Fence(farm_name, mine)
        return self._fence

    def _spool(self, farm_name: str) -> Path:
        return memory.spool_path(self._folder, farm_name, self.place)

    def open_night(self, farm_name: str, digest: str, now: datetime) -> OpenedNight:
        """Goes on with the farm's night that is not finished, or begins one.

        Attempts that were under way when its coordinator ended are lost ones.

        Args:
            farm_name: Its name.
            digest: Of what the farm.yaml says: with another content, another night begins, and the
                unfinished one is abandoned.
            now: The time.

        Raises:
            TakenError: Another process is running this farm.
            StoreError: The history cannot be used.
            Interrupted: The run was stopped while it waited for the database.
        """
        fence = self._hold(farm_name)
        for event in self._post.use(self._spool(farm_name), fence):
            self._memory.take(event)
        wanted = KeptNight(
            id=_night_id(farm_name, now), farm=farm_name, digest=digest, started_at=_text(now)
        )
        self._night = self._open(wanted, fence)
        for kept in self._memory.visits(self._night.id):
            self._lose(kept)
        return OpenedNight(self._night.id, self.states(self._night.id))

    def plan(self, visits: Sequence[Visit]) -> None:
        """Adds visits to the night; those that it has stay as they are.

        Raises:
            TakenError: Another process has taken the farm over.
        """
        night = self._open_one()
        self._record(Planned(night=night.id, visits=tuple(map(rules.planned, visits))))

    def running(self, visit: str, attempt: int, identity: str, host: str, device: str = "") -> None:
        """An attempt begins.

        Args:
            visit: Its id.
            attempt: Its number.
            identity: Of the device.
            host: That has it.
            device: The device's name, for people who reserve it by that.

        Raises:
            TakenError: Another process has taken the farm over: do not begin it.
        """
        self._record(
            Began(
                visit=visit, attempt=attempt, identity=identity, host=host, device=device,
                token=secrets.token_hex(8), at=self._text_now(),
            )
        )  # fmt: skip

    def ended(self, ending: AttemptResult) -> bool:
        """An attempt ended. The record of one that counts goes to the history, too.

        Returns:
            Whether no other attempt of the visit counts.
        """
        content = storable(ending.model_dump(mode="json"))
        content["seconds"] = content["seconds"] or 0.0
        ending = AttemptResult.model_validate(content)
        kept = self._record(
            AttemptEnded(ending=ending, token=secrets.token_hex(8), at=self._text_now())
        )
        return kept is None or not rules.is_beaten(kept, ending)

    def missed(self, visit: str, reason: str) -> None:
        """A visit could not run."""
        self._record(GivenUp(visit=visit, standing=Standing.MISSED, reason=storable(reason)))

    def failed(self, visit: str, reason: str) -> None:
        """A visit is given up: all attempts failed, or its recipe was stopped."""
        self._record(GivenUp(visit=visit, standing=Standing.FAILED, reason=storable(reason)))

    def finish(self, night: str) -> None:
        """The night is over; its verdicts need what is still on its way to the database."""
        self._record(Closed(night=night, outcome=FINISHED, at=self._text_now()))
        self._post.drain(_DRAIN_S)

    def nights(self, farm_name: str | None = None, limit: int = 100) -> tuple[KeptNight, ...]:
        """The latest nights of a farm, or of all; the latest first.

        Raises:
            StoreError: The history cannot be read.
        """
        if self.place.file and not self.place.file.exists():
            return ()

        def read(store: Store) -> tuple[KeptNight, ...]:
            from etdeploy.history.store import nights

            with store.transaction() as connection:
                return tuple(nights.nights_of(connection, farm_name, limit))

        return self._post.read(read, _READ_S)

    def states(self, night: str) -> tuple[VisitState, ...]:
        """The visits of a night with what became of them, in the order of its plan.

        Raises:
            StoreError: It is not this ledger's, and the history cannot be read.
        """
        if night in self._memory.nights:
            return rules.states_of(self._memory.visits(night))

        def read(store: Store) -> list[KeptVisit]:
            from etdeploy.history.store import nights

            with store.transaction() as connection:
                return nights.visits_of(connection, night)

        return rules.states_of(self._post.read(read, _READ_S))

    def _open(self, wanted: KeptNight, fence: Fence) -> KeptNight:
        """The night, from the database; while that is down, from the spool, or after a wait new."""
        from etdeploy.history.store.errors import UnreachableError

        until, told = time.monotonic() + self._opening_s, False
        while True:
            cancel.checkpoint()
            try:
                self._post.bring_in(_READ_S)
                opened = self._post.read(partial(self._find, wanted=wanted, fence=fence), _READ_S)
            except (UnreachableError, TimeoutError) as error:
                known = self._resumable(wanted, self._memory.nights.values())
                if not told:
                    waits = f"waits up to {self._opening_s / 60:.0f} min for the history"
                    does = "goes on without the history" if known else f"{waits}, then begins"
                    self._tell(f"the night {does}: {error}")
                told = True
                if known or time.monotonic() >= until:
                    return self._begin_without(known, wanted)
                time.sleep(_AGAIN_S)
            else:
                self._memory = NightCache()
                self._memory.take(opened)
                self._post.begin(None)
                return opened.night

    def _find(self, store: Store, wanted: KeptNight, fence: Fence) -> Opened:
        """Takes the farm, ends nights that nobody goes on with, and begins one if none is left."""
        from etdeploy.history.store import nights

        with store.transaction(writes=True) as connection:
            fence.take(connection)
            left = nights.unfinished_nights(connection, wanted.farm)
            night = self._resumable(wanted, left) or wanted
            nights.add_night(connection, night)
            self._abandon_others(connection, night)
            visits = nights.visits_of(connection, night.id)
        return Opened(night=night, visits=tuple(visits))

    def _begin_without(self, known: KeptNight | None, wanted: KeptNight) -> KeptNight:
        night = known or wanted
        if known is None:
            self._memory.take(Opened(night=night))
            self._post.note(Opened(night=night))
        self._post.begin(partial(self._abandon_others, night=night))
        return night

    def _abandon_others(self, connection: Connection, night: KeptNight) -> None:
        for other in abandon_others(connection, night.farm, night.id, self._text_now()):
            same = other.digest == night.digest
            old = "it began too long ago" if self._resumes else "a new one was asked for"
            why = old if same else "its farm.yaml had another content"
            self._tell(f"the unfinished night {other.id} is abandoned: {why}")

    def _resumable(self, wanted: KeptNight, nights: Iterable[KeptNight]) -> KeptNight | None:
        """The latest unfinished night of the same content, unless it is too old."""
        oldest = _text(datetime.fromisoformat(wanted.started_at) - self._resumed_within)
        fit = [
            night
            for night in nights
            if self._resumes
            and (night.farm, night.digest) == (wanted.farm, wanted.digest)
            and night.ended_at is None
            and night.started_at >= oldest
        ]
        return max(fit, key=lambda night: night.started_at, default=None)

    def _lose(self, kept: KeptVisit) -> None:
        """Nobody knows how the attempts ended that an earlier coordinator began."""
        for attempt in rules.under_way(kept):
            self.ended(
                AttemptResult(
                    visit=kept.id, attempt=attempt.attempt, identity=attempt.identity,
                    host=attempt.host, fate=Fate.LOST,
                )
            )  # fmt: skip

    def _record(self, event: Event) -> KeptVisit | None:
        """Notes an event, and returns the visit that an ending is of, as far as that is known."""
        kept = self._post.send(event)
        self._memory.take(event)
        if kept:
            self._memory.know(kept)
            return kept
        return self._memory.visit(event.ending.visit) if isinstance(event, AttemptEnded) else None

    def _snapshot(self) -> Opened | None:
        """All that is known of the night, so that the spool tells it without the database."""
        if self._night is None:
            return None
        night = self._memory.nights.get(self._night.id, self._night)
        return Opened(
            night=night.model_copy(update={"ended_at": None, "outcome": None}),
            visits=self._memory.visits(night.id),
        )

    def _open_one(self) -> KeptNight:
        if self._night is None:
            raise RuntimeError("no night was opened")
        return self._night

    def _text_now(self) -> str:
        return _text(self._now())


def _text(time: datetime) -> str:
    return time.astimezone(timezone.utc).isoformat(timespec="seconds")


def _night_id(farm: str, now: datetime) -> str:
    """Unique also where two begin in the same second, without the database."""
    stamp = f"{now.astimezone(timezone.utc):%Y%m%dT%H%M%SZ}"
    return f"{stamp}-{memory.slug(farm)}-{secrets.token_hex(3)}"
