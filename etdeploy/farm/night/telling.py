"""What is told of a night, and what may fail without ending it."""

from __future__ import annotations

from collections.abc import Callable

from etdeploy.core.errors import Interrupted
from etdeploy.farm.night.model import Event, EventKind


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
