"""What a coordinator knows of its nights without asking the database."""

from __future__ import annotations

from functools import singledispatchmethod

from etdeploy.farm.night.keeping import rules
from etdeploy.farm.night.keeping.events import (
    Began,
    Closed,
    Ended,
    Event,
    GivenUp,
    Opened,
    Planned,
)
from etdeploy.history.nights import KeptNight, KeptVisit


class Memory:
    """Nights and visits, as events leave them."""

    def __init__(self) -> None:
        self.nights: dict[str, KeptNight] = {}
        self._visits: dict[str, dict[str, KeptVisit]] = {}
        self._night_of: dict[str, str] = {}

    def visits(self, night: str) -> tuple[KeptVisit, ...]:
        """The visits of a night, in the order of its plan."""
        return tuple(self._visits.get(night, {}).values())

    def visit(self, visit: str) -> KeptVisit | None:
        """One visit, if it is of a night that is known here."""
        night = self._night_of.get(visit)
        return self._visits[night][visit] if night else None

    def know(self, kept: KeptVisit) -> None:
        """Takes over what the database says of a visit."""
        if night := self._night_of.get(kept.id):
            self._visits[night][kept.id] = kept

    def take(self, event: Event) -> None:
        """Takes an event over; one of an unknown visit changes nothing."""
        self._take(event)

    @singledispatchmethod
    def _take(self, event: Event) -> None:
        raise TypeError(f"no event: {event!r}")

    @_take.register
    def _(self, event: Opened) -> None:
        self.nights.setdefault(event.night.id, event.night)
        self._add(event.night.id, event.visits)

    @_take.register
    def _(self, event: Planned) -> None:
        self._add(event.night, event.visits)

    @_take.register
    def _(self, event: Began) -> None:
        if kept := self.visit(event.visit):
            self.know(rules.began(kept, event))

    @_take.register
    def _(self, event: Ended) -> None:
        if kept := self.visit(event.ending.visit):
            self.know(rules.ended(kept, event))

    @_take.register
    def _(self, event: GivenUp) -> None:
        if kept := self.visit(event.visit):
            self.know(rules.given_up(kept, event))

    @_take.register
    def _(self, event: Closed) -> None:
        night = self.nights.get(event.night)
        if night and night.ended_at is None:
            update = {"ended_at": event.at, "outcome": event.outcome}
            self.nights[night.id] = night.model_copy(update=update)

    def _add(self, night: str, visits: tuple[KeptVisit, ...]) -> None:
        there = self._visits.setdefault(night, {})
        for kept in visits:
            if kept.id not in self._night_of:
                there[kept.id] = kept
                self._night_of[kept.id] = night
