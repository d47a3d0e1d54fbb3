"""Verdicts while a night goes on."""

from __future__ import annotations

from collections.abc import Sequence

from etdeploy.core.errors import EtdeployError
from etdeploy.farm.model import Standing, VisitState
from etdeploy.farm.spec.model import LoadedFarm
from etdeploy.history.place import Place


class Judged:
    """Verdicts on recipes and devices, as soon as all repeats have ended."""

    def __init__(self, loaded: LoadedFarm, place: Place) -> None:
        self._loaded, self._place = loaded, place
        self._states: dict[str, VisitState] = {}

    def know(self, states: Sequence[VisitState]) -> None:
        """Learns where visits stand."""
        self._states.update({state.visit.id: state for state in states})

    def verdict(self, state: VisitState) -> str | None:
        """The verdict on a visit that ended; None while others of its recipe there are left."""
        result = state.result
        # One that was missed or failed may be the last of those that are judged.
        identity = result.identity if result else state.visit.device
        if identity is None:
            return None
        same = [each for each in self._states.values() if _is_same(each, state, identity)]
        if any(each.standing in (Standing.WAITING, Standing.RUNNING) for each in same):
            return None
        measured = [each for each in same if each.result]
        return self._judge(measured) if measured else None

    def _judge(self, states: Sequence[VisitState]) -> str | None:
        from etdeploy.farm.verdicts.night import judge_night
        from etdeploy.history.store.store import open_store

        night = states[0].visit.id.rpartition("-")[0]
        files = {label: recipe.path for label, recipe in self._loaded.recipes.items()}
        try:
            with open_store(self._place, read_only=True) as store:
                found = judge_night(store, night, states, self._loaded.farm, files)
        except EtdeployError:  # the history is away; the end of the night judges all
            return None
        return str(found[0].kind) if found else None


def _is_same(other: VisitState, state: VisitState, identity: str) -> bool:
    if other.visit.recipe != state.visit.recipe:
        return False
    where = other.result.identity if other.result else other.visit.device
    return where in (identity, None)
