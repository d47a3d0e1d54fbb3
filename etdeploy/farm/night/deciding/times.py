"""How long attempts take, from those that ended."""

from __future__ import annotations

from collections.abc import Iterable

from etdeploy.farm.model import Fate, VisitState

UNKNOWN_S = 300.0
"""Taken for an attempt of a recipe that was never measured: all are alike then, and any will do."""


class Times:
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
