"""What a night learns of numbers, and whom it tells what."""

from __future__ import annotations

from collections.abc import Callable

from etdeploy.core.errors import Interrupted
from etdeploy.farm.model import AttemptResult
from etdeploy.farm.night.failure_attribution import spread, variance_reason
from etdeploy.farm.night.model import Event, EventKind
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

    def add(self, recipe: str, ending: AttemptResult) -> None:
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


class Telling:
    """Tells whoever watches the night.

    Attributes:
        event: Tells an event.
    """

    def __init__(self, on_event: Callable[[Event], None]) -> None:
        self.event = on_event
        self._said: set[str] = set()

    def tell(self, text: str) -> None:
        """Tells what happened."""
        self.event(Event(EventKind.TOLD, text))

    def trouble(self, text: str) -> None:
        """Tells what went wrong, each thing once."""
        if text not in self._said:
            self._said.add(text)
            self.event(Event(EventKind.TROUBLE, text))

    def forgiving(self, act: Callable[[], object], otherwise: str) -> bool:
        """Does what must not end the night if it fails; whether it was done."""
        try:
            act()
        except Interrupted:
            raise
        except Exception as error:
            self.trouble(f"{otherwise}: {error}")
            return False
        return True
