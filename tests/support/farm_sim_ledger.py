"""A ledger and a shelf in memory, which can be down."""

# ruff: noqa: ARG002 - parts that stand for others take what those take

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from etdeploy.core.errors import StoreError
from etdeploy.farm.model import AttemptResult, Fate, Offer, Standing, Visit, VisitState
from tests.support.farm_sim_engine import SimClock


@dataclass
class MemoryLedger:
    """A ledger that survives its coordinator.

    Attributes:
        down: Whether every call fails.
        counted: How often an attempt of a visit counted; more than once is the mistake.
    """

    down: bool = False
    nights: dict[str, dict[str, VisitState]] = field(default_factory=dict)
    finished: set[str] = field(default_factory=set)
    counted: Counter[str] = field(default_factory=Counter)
    known: dict[str, str] = field(default_factory=dict)

    def open_night(
        self, farm_name: str, digest: str, now: datetime
    ) -> tuple[str, Sequence[VisitState]]:
        self._require()
        for night, of in self.known.items():
            if of == digest and night not in self.finished:
                for state in list(self.nights[night].values()):
                    self._lose(state)
                return night, tuple(self.nights[night].values())
        night = f"{farm_name}-{len(self.nights) + 1}"
        self.known[night], self.nights[night] = digest, {}
        return night, ()

    def plan(self, visits: Sequence[Visit]) -> None:
        self._require()
        for visit in visits:
            self._of(visit.id).setdefault(visit.id, VisitState(visit=visit))

    def _lose(self, state: VisitState) -> None:
        """Nobody knows how the attempt ended that an earlier coordinator began."""
        if state.standing is Standing.RUNNING:
            attempt, visit = len(state.attempts) + 1, state.visit
            self.ended(
                AttemptResult(visit=visit.id, attempt=attempt, identity="", host="", fate=Fate.LOST)
            )

    def running(self, visit: str, attempt: int, identity: str, host: str, device: str = "") -> None:
        self._require()
        if self._state(visit).result is None:
            self._set(visit, standing=Standing.RUNNING)

    def ended(self, ending: AttemptResult) -> bool:
        self._require()
        state = self._state(ending.visit)
        if any(e.attempt == ending.attempt and e.fate == ending.fate for e in state.attempts):
            return True
        if state.result:
            return False
        is_done = ending.fate is Fate.DONE
        self.counted[ending.visit] += is_done
        standing = Standing.DONE if is_done else Standing.WAITING
        self._set(ending.visit, standing=standing, attempts=(*state.attempts, ending))
        return True

    def missed(self, visit: str, reason: str) -> None:
        self._require()
        self._set(visit, standing=Standing.MISSED, reason=reason)

    def failed(self, visit: str, reason: str) -> None:
        self._require()
        self._set(visit, standing=Standing.FAILED, reason=reason)

    def finish(self, night: str) -> None:
        self._require()
        self.finished.add(night)

    @property
    def states(self) -> dict[str, VisitState]:
        """Of the last night."""
        return list(self.nights.values())[-1]

    def _of(self, visit: str) -> dict[str, VisitState]:
        return self.nights[visit.rpartition("-")[0]]

    def _state(self, visit: str) -> VisitState:
        return self._of(visit)[visit]

    def _set(self, visit: str, **changes: object) -> None:
        self._of(visit)[visit] = self._state(visit).model_copy(update=changes)

    def _require(self) -> None:
        if self.down:
            raise StoreError("the database is down")


@dataclass
class SimReservation:
    """A claim on a device."""

    identity: str
    owner: str
    until: datetime

    def is_of(self, identity: str, host: str, device: str = "") -> bool:
        return identity == self.identity


@dataclass
class SimQuarantined:
    """A device that was set aside."""

    identity: str
    reason: str

    def is_of(self, identity: str, host: str, device: str = "") -> bool:
        return identity == self.identity


@dataclass
class SimShelf:
    """Reservations and quarantine in memory."""

    clock: SimClock
    claims: list[SimReservation] = field(default_factory=list)
    aside: list[SimQuarantined] = field(default_factory=list)
    down: bool = False

    def reservations(self) -> Sequence[SimReservation]:
        if self.down:
            raise StoreError("the database is down")
        return [claim for claim in self.claims if claim.until > self.clock.now()]

    def quarantined(self) -> Sequence[SimQuarantined]:
        return self.aside

    def set_aside(self, offer: Offer, reason: str) -> None:
        self.aside.append(SimQuarantined(offer.identity, reason))
