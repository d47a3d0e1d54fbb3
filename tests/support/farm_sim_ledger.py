"""A ledger and a shelf in memory, which can be down."""

# ruff: noqa: ARG002 - parts that stand for others take what those take

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial

from etdeploy.core.errors import StoreError
from etdeploy.farm.model import AttemptResult, AvailableDevice, Fate, Standing, Visit, VisitState
from etdeploy.history.nights import Quarantined, Reservation
from tests.support.farm_sim_engine import BEGIN, SimClock


@dataclass
class MemoryLedger:
    """A ledger that survives its coordinator.

    Attributes:
        down: Whether its database is away: what happens waits in its outbox.
        counted: How often an attempt of a visit counted; more than once is the mistake.
        delayed: How many events had to wait.
    """

    nights: dict[str, dict[str, VisitState]] = field(default_factory=dict)
    finished: set[str] = field(default_factory=set)
    counted: Counter[str] = field(default_factory=Counter)
    known: dict[str, str] = field(default_factory=dict)
    queued: list[Callable[[], object]] = field(default_factory=list)
    delayed: int = 0
    _down: bool = False

    @property
    def down(self) -> bool:
        return self._down

    @down.setter
    def down(self, down: bool) -> None:
        self._down = down
        self._write(lambda: None)

    def open_night(
        self, farm_name: str, digest: str, now: datetime
    ) -> tuple[str, Sequence[VisitState]]:
        if self.down:
            raise StoreError("the database is down")
        for night, of in self.known.items():
            if of == digest and night not in self.finished:
                for state in list(self.nights[night].values()):
                    self._lose(state)
                return night, tuple(self.nights[night].values())
        night = f"{farm_name}-{len(self.nights) + 1}"
        self.known[night], self.nights[night] = digest, {}
        return night, ()

    def plan(self, visits: Sequence[Visit]) -> None:
        for visit in visits:
            self._write(partial(self._of(visit.id).setdefault, visit.id, VisitState(visit=visit)))

    def _lose(self, state: VisitState) -> None:
        """Nobody knows how the attempt ended that an earlier coordinator began."""
        if state.standing is Standing.RUNNING:
            attempt, visit = len(state.attempts) + 1, state.visit
            self.ended(
                AttemptResult(visit=visit.id, attempt=attempt, identity="", host="", fate=Fate.LOST)
            )

    def running(self, visit: str, attempt: int, identity: str, host: str, device: str = "") -> None:
        def begin() -> None:
            if self._state(visit).result is None:
                self._set(visit, standing=Standing.RUNNING)

        self._write(begin)

    def ended(self, ending: AttemptResult) -> None:
        self._write(partial(self._end, ending))

    def _end(self, ending: AttemptResult) -> None:
        state = self._state(ending.visit)
        if state.result or any(
            e.attempt == ending.attempt and e.fate == ending.fate for e in state.attempts
        ):
            return
        is_done = ending.fate is Fate.DONE
        self.counted[ending.visit] += is_done
        standing = Standing.DONE if is_done else Standing.WAITING
        self._set(ending.visit, standing=standing, attempts=(*state.attempts, ending))

    def give_up(self, visit: str, standing: Standing, reason: str) -> None:
        self._write(partial(self._set, visit, standing=standing, reason=reason))

    def finish(self, night: str) -> None:
        self._write(partial(self.finished.add, night))

    @property
    def states(self) -> dict[str, VisitState]:
        """Of the last night."""
        return list(self.nights.values())[-1]

    def _write(self, act: Callable[[], object]) -> None:
        self.queued.append(act)
        self.delayed += self.down
        while self.queued and not self.down:
            self.queued.pop(0)()

    def _of(self, visit: str) -> dict[str, VisitState]:
        return self.nights[visit.rpartition("-")[0]]

    def _state(self, visit: str) -> VisitState:
        return self._of(visit)[visit]

    def _set(self, visit: str, **changes: object) -> None:
        self._of(visit)[visit] = self._state(visit).model_copy(update=changes)


def reserved(identity: str, owner: str, until: datetime) -> Reservation:
    """A person's claim on a device."""
    return Reservation(identity=identity, device="", owner=owner, until=until)


def quarantined(identity: str, reason: str) -> Quarantined:
    """A device that was quarantined."""
    return Quarantined(identity=identity, device="", reason=reason, since=BEGIN, by="night")


@dataclass
class SimDevicePool:
    """Reservations and quarantine in memory."""

    clock: SimClock
    claims: list[Reservation] = field(default_factory=list)
    aside: list[Quarantined] = field(default_factory=list)
    down: bool = False

    def reservations(self) -> Sequence[Reservation]:
        if self.down:
            raise StoreError("the database is down")
        return [claim for claim in self.claims if claim.until > self.clock.now()]

    def quarantined(self) -> Sequence[Quarantined]:
        return self.aside

    def quarantine_device(self, offer: AvailableDevice, reason: str) -> None:
        self.aside.append(quarantined(offer.identity, reason))
