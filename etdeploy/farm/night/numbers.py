"""The numbers of a night by recipe and device, and whose cannot be trusted."""

from __future__ import annotations

from etdeploy.farm.model import Ending
from etdeploy.farm.night.deciding.trouble import spread, variance_reason
from etdeploy.farm.night.parts import Headline


class Numbers:
    """What each device measured of each recipe.

    Args:
        headline: Reads the number of a record.
    """

    def __init__(self, headline: Headline) -> None:
        self._headline = headline
        self._values: dict[tuple[str, str], list[float]] = {}
        self._spreads: dict[tuple[str, str], float] = {}

    def add(self, recipe: str, ending: Ending) -> None:
        """Adds the number of an attempt, if it has one."""
        value = self._headline(ending)
        if value is None:
            return
        pair = (recipe, ending.identity)
        values = self._values.setdefault(pair, [])
        values.append(value)
        found = spread(values)
        if found is not None:
            self._spreads[pair] = found

    def odd(self, recipe: str, identity: str) -> str | None:
        """Why the device's numbers cannot be trusted, after one of this recipe; None if they can.

        Looked at only where the recipe has enough repeats there.
        """
        if (recipe, identity) not in self._spreads:
            return None
        own = [each for (_, device), each in self._spreads.items() if device == identity]
        others = [each for (_, device), each in self._spreads.items() if device != identity]
        return variance_reason(own, others)
