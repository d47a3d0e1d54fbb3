"""Which visits a night gains when a device appears that was not there when it was planned. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from etdeploy.farm.model import Fate, Offer, Visit, VisitState
from etdeploy.farm.spec.matrix import Unsatisfied

Key = tuple[str, str, "str | None", int]


@dataclass(frozen=True)
class Gained:
    """What a new plan has that the night has not.

    Attributes:
        visits: With ids of their own.
        among: Devices that visits of the night may go to now, by their ids.
    """

    visits: tuple[Visit, ...] = ()
    among: tuple[tuple[str, tuple[str, ...]], ...] = ()


def gained(night: str, known: Iterable[VisitState], planned: Iterable[Visit]) -> Gained:
    """Compares a new plan with what the night has."""
    have = list(known)
    missing = Counter(_key(visit) for visit in planned)
    missing.subtract(Counter(_key(state.visit) for state in have))
    number = max((_number(state.visit.id) for state in have), default=0)
    new, devices = [], {}
    for visit in planned:
        devices[_key(visit)] = visit.among
        if missing[_key(visit)] > 0:
            missing[_key(visit)] -= 1
            number += 1
            new.append(visit.model_copy(update={"id": f"{night}-{number}"}))
    wider = tuple(
        (state.visit.id, devices[_key(state.visit)])
        for state in have
        if state.visit.device is None
        and set(devices.get(_key(state.visit), ())) - set(state.visit.among)
    )
    return Gained(tuple(new), wider)


def unsatisfied_visits(
    night: str, known: Iterable[VisitState], unsatisfied: Iterable[Unsatisfied]
) -> list[tuple[Visit, str]]:
    """A visit, with the reason why it is missed, for each part of the matrix without a device."""
    have = list(known)
    reasons = {(state.visit.recipe, state.visit.group, state.reason) for state in have}
    number = max((_number(state.visit.id) for state in have), default=0)
    missing = [e for e in unsatisfied if (e.recipe, e.group, e.reason) not in reasons]
    return [
        (
            Visit(id=f"{night}-{i}", recipe=e.recipe, group=e.group, device=None, among=()),
            e.reason,
        )
        for i, e in enumerate(missing, number + 1)
    ]


def _key(visit: Visit) -> Key:
    return (visit.recipe, visit.group, visit.device, visit.repeat)


def _number(visit: str) -> int:
    tail = visit.rpartition("-")[2]
    return int(tail) if tail.isdigit() else 0


def offers_by_recipe(
    visits: Iterable[Visit], offers: Mapping[str, Offer]
) -> dict[str, Sequence[Offer]]:
    """The devices that each recipe has to be made for, by its label."""
    found: dict[str, dict[str, Offer]] = {}
    for visit in visits:
        devices = visit.among if visit.device is None else (visit.device,)
        known = {each: offers[each] for each in devices if each in offers}
        found.setdefault(visit.recipe, {}).update(known)
    return {recipe: tuple(each.values()) for recipe, each in found.items() if each}


UNKNOWN_S = 300.0
"""Taken for an attempt of a recipe that was never measured: all are alike then, and any will do."""


class AttemptDurations:
    """Mean seconds of attempts that were measured, by recipe and device."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, str], tuple[float, int]] = {}

    def add(self, recipe: str, identity: str, seconds: float) -> None:
        """Counts an attempt; also for the recipe on devices that never had it."""
        for key in ((recipe, identity), (recipe, "")):
            total, count = self._sums.get(key, (0.0, 0))
            self._sums[key] = (total + seconds, count + 1)

    def learn(self, states: Iterable[VisitState]) -> None:
        """Counts those of a night."""
        for state in states:
            for ending in state.attempts:
                if ending.fate is Fate.DONE:
                    self.add(state.visit.recipe, ending.identity, ending.seconds)

    def expected_s(self, recipe: str, identity: str = "") -> float:
        """What an attempt will take: as on that device before, else as on the others."""
        total, count = self._sums.get((recipe, identity)) or self._sums.get((recipe, ""), (0.0, 0))
        return total / count if count else UNKNOWN_S
