"""The ledger of a farm: its nights and visits in the history's database, which may be away."""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from etdeploy.core import cancel, console
from etdeploy.core.errors import StoreError
from etdeploy.core.hashing import sha256_bytes
from etdeploy.farm.model import AttemptResult, Fate, Standing, Visit, VisitState
from etdeploy.farm.night.events import (
    AttemptEnded,
    Began,
    Closed,
    GivenUp,
    Opened,
    Planned,
    new_visit,
    open_attempts,
    parse_event,
    replay_events,
    state_of,
)
from etdeploy.farm.night.lease import Lease, lock_farm
from etdeploy.farm.night.outbox import Importer, Outbox, run_within
from etdeploy.history.location import HistoryLocation, data_folder
from etdeploy.history.nights import ABANDONED, FINISHED, KeptNight, KeptVisit, storable

if TYPE_CHECKING:
    from etdeploy.history.store.store import Connection, Store

R = TypeVar("R")
# A night that began earlier than this before is not resumed: the next one is due.
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
        self._night = ""
        self._lease: Lease | None = None
        self._outbox: Outbox | None = None
        self._stack = ExitStack()
        self._importer = Importer(place, tell)

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let another process run the farm; what waits for the database stays in the outbox."""
        self._importer.close()
        self._stack.close()

    def claim(self, farm_name: str) -> None:
        """Hold a farm before its night begins, which may be hours later.

        On other hosts it is held only if the history can be used now.
        """
        lease = self._hold(farm_name)
        if self.place.file and not self.place.file.exists():
            return

        def take(store: Store) -> None:
            with store.transaction(writes=True) as connection:
                lease.take(connection)

        try:
            self._read(take, _LOOK_S)
        except (StoreError, TimeoutError):
            return  # the beginning of the night waits for it
        self._importer.hold(lease)

    def open_night(self, farm_name: str, digest: str, now: datetime) -> OpenedNight:
        """Resume the farm's night that is not finished, or begin one.

        Attempts that were under way when its coordinator ended are lost ones.

        """
        lease = self._hold(farm_name)
        self._outbox = Outbox(self._path(farm_name, "outbox.jsonl"))
        self._importer.use(self._outbox)
        # Unique also where two begin in the same second, without the database.
        stamp = f"{now.astimezone(timezone.utc):%Y%m%dT%H%M%SZ}"
        wanted = KeptNight(
            id=f"{stamp}-{_slug(farm_name)}-{secrets.token_hex(3)}", farm=farm_name,
            digest=digest, started_at=_text(now),
        )  # fmt: skip
        opened = self._open(wanted, lease)
        self._night = opened.night.id
        # Nobody knows how the attempts ended that an earlier coordinator began.
        for kept in opened.visits:
            for attempt in open_attempts(kept):
                self.ended(
                    AttemptResult(
                        visit=kept.id, attempt=attempt.attempt, identity=attempt.identity,
                        host=attempt.host, fate=Fate.LOST,
                    )
                )  # fmt: skip
        return OpenedNight(self._night, self.states(self._night))

    def plan(self, visits: Sequence[Visit]) -> None:
        """Add visits to the night; those that it has stay as they are."""
        self._importer.append(Planned(night=self._night, visits=tuple(map(new_visit, visits))))

    def running(self, visit: str, attempt: int, identity: str, host: str, device: str = "") -> None:
        """An attempt begins."""
        self._importer.append(
            Began(
                visit=visit, attempt=attempt, identity=identity, host=host, device=device,
                at=_text(self._now()),
            )
        )  # fmt: skip

    def ended(self, ending: AttemptResult) -> None:
        """An attempt ended. The record of one that counts goes to the history, too."""
        content = storable(ending.model_dump(mode="json"))
        content["seconds"] = content["seconds"] or 0.0
        ending = AttemptResult.model_validate(content)
        self._importer.append(AttemptEnded(ending=ending, at=_text(self._now())))

    def give_up(self, visit: str, standing: Standing, reason: str) -> None:
        """A visit is not measured in this night: it failed, or was missed."""
        event = GivenUp(visit=visit, standing=str(standing), reason=storable(reason))
        self._importer.append(event)

    def finish(self, night: str) -> None:
        """The night is over; its verdicts need what is still on its way to the database."""
        self._importer.append(Closed(night=night, outcome=FINISHED, at=_text(self._now())))
        self._importer.drain(_DRAIN_S)

    def nights(self, farm_name: str | None = None, limit: int = 100) -> tuple[KeptNight, ...]:
        """The latest nights of a farm, or of all; the latest first."""
        if self.place.file and not self.place.file.exists():
            return ()

        def read(store: Store) -> tuple[KeptNight, ...]:
            from etdeploy.history.store import nights

            with store.transaction() as connection:
                return tuple(nights.nights_of(connection, farm_name, limit))

        return self._read(read, _READ_S)

    def states(self, night: str) -> tuple[VisitState, ...]:
        """The visits of a night with what became of them, in the order of its plan."""

        def read(store: Store) -> list[KeptVisit]:
            from etdeploy.history.store import nights

            with store.transaction() as connection:
                return nights.visits_of(connection, night)

        own = self._queued_nights().get(night) if night == self._night else None
        return tuple(map(state_of, own.visits if own else self._read(read, _READ_S)))

    def _hold(self, farm_name: str) -> Lease:
        if self._lease is None:
            lock = lock_farm(self._path(farm_name, "lock"), farm_name)
            self._lease = Lease(farm_name, self._stack.enter_context(lock))
        return self._lease

    def _path(self, farm: str, ending: str) -> Path:
        """A file of a farm and this history."""
        key = sha256_bytes(json.dumps([farm, self.place.shown]).encode())[:8]
        return self._folder / "farm" / f"{_slug(farm)}-{key}.{ending}"

    def _read(self, action: Callable[[Store], R], wait_s: float) -> R:
        def read() -> R:
            from etdeploy.history.store.store import open_store

            with open_store(self.place) as store:
                return action(store)

        return run_within(wait_s, read)

    def _queued_nights(self) -> dict[str, Opened]:
        """The nights that the outbox tells of, without the database."""
        lines = self._outbox.lines() if self._outbox else []
        return replay_events(event for line, _ in lines if (event := parse_event(line)))

    def _open(self, wanted: KeptNight, lease: Lease) -> Opened:
        """The night from the database; while that is down, from the outbox, or after a wait new."""
        from etdeploy.history.store.errors import UnreachableError

        until, has_told = time.monotonic() + self._opening_s, False
        while True:
            cancel.checkpoint()
            try:
                if error := self._importer.drain(_READ_S):
                    raise error
                opened = self._read(partial(self._find, wanted=wanted, lease=lease), _READ_S)
            except (UnreachableError, TimeoutError) as error:
                left = self._queued_nights()
                known = self._resumable(wanted, [each.night for each in left.values()])
                if not has_told:
                    waits = f"waits up to {self._opening_s / 60:.0f} min for the history"
                    does = "goes on without the history" if known else f"{waits}, then begins"
                    self._tell(f"the night {does}: {error}")
                has_told = True
                if known or time.monotonic() >= until:
                    opened = left[known.id] if known else Opened(night=wanted)
                    self._importer.hold(lease)
                    settle = partial(self._abandon_others, night=opened.night)
                    self._importer.go_without(None if known else opened, settle)
                    return opened
                time.sleep(_AGAIN_S)
            else:
                self._importer.resume(opened)
                self._importer.hold(lease)
                return opened

    def _find(self, store: Store, wanted: KeptNight, lease: Lease) -> Opened:
        """Take the farm, end nights that nobody resumes, and begin one if none is left."""
        from etdeploy.history.store import nights

        with store.transaction(writes=True) as connection:
            lease.take(connection)
            left = nights.unfinished_nights(connection, wanted.farm)
            night = self._resumable(wanted, left) or wanted
            nights.add_night(connection, night)
            self._abandon_others(connection, night)
            visits = nights.visits_of(connection, night.id)
        return Opened(night=night, visits=tuple(visits))

    def _abandon_others(self, connection: Connection, night: KeptNight) -> None:
        """End all nights of the farm that nobody resumes; what they did not measure was missed."""
        from etdeploy.history.store import nights

        open_ = (Standing.WAITING, Standing.RUNNING)
        for other in nights.unfinished_nights(connection, night.farm):
            if other.id == night.id:
                continue
            nights.settle_visits(
                connection, other.id, open_, Standing.MISSED, "another night of this farm began"
            )
            nights.end_night(connection, other.id, _text(self._now()), ABANDONED)
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


def _text(time: datetime) -> str:
    return time.astimezone(timezone.utc).isoformat(timespec="seconds")


def _slug(farm: str) -> str:
    """A farm's name as a part of a file's name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", farm)[:60]
