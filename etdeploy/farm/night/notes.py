"""What the night writes down. A ledger that fails ends nothing: it is asked again later."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from etdeploy.core.errors import Interrupted
from etdeploy.farm.model import AttemptResult, Order, Visit
from etdeploy.farm.night.failure_attribution import spread, variance_reason
from etdeploy.farm.night.model import Event, EventKind
from etdeploy.farm.night.parts import Clock, Headline, LedgerLike
from etdeploy.farm.night.writing import TakenError

_AGAIN_S = 10.0


class Notes:
    """Notes for a ledger, in their order; those that it refused wait in memory.

    The ledger itself keeps a file for the time that its database is down; this is for a ledger
    that cannot even do that. What is lost with the process then is measured again. Every method
    may raise TakenError: another process runs this farm now, and this night must end.
    """

    def __init__(self, ledger: LedgerLike, clock: Clock, trouble: Callable[[str], None]) -> None:
        self._ledger, self._clock, self._trouble = ledger, clock, trouble
        self._waiting: deque[Callable[[], object]] = deque()
        self._not_before_s = 0.0

    def plan(self, visits: Sequence[Visit]) -> None:
        """Visits were planned."""
        self._note(lambda: self._ledger.plan(visits))

    def running(self, order: Order) -> None:
        """An attempt begins."""
        offer = order.offer
        self._note(
            lambda: self._ledger.running(
                order.visit, order.attempt, offer.identity, offer.host, offer.name
            )
        )

    def ended(self, ending: AttemptResult) -> bool:
        """An attempt ended; True if it counts, or if the ledger cannot say so now."""
        return self._note(lambda: self._ledger.ended(ending)) is not False

    def missed(self, visit: str, reason: str) -> None:
        """A visit could not run."""
        self._note(lambda: self._ledger.missed(visit, reason))

    def failed(self, visit: str, reason: str) -> None:
        """A visit is given up."""
        self._note(lambda: self._ledger.failed(visit, reason))

    def finish(self, night: str) -> None:
        """The night is over."""
        self._note(lambda: self._ledger.finish(night))

    def flush(self) -> bool:
        """Writes what waits; whether all of it is written."""
        while self._waiting:
            if self._clock.seconds() < self._not_before_s or not self._done(self._waiting[0])[0]:
                return False
            self._waiting.popleft()
        return True

    def _note(self, write: Callable[[], object]) -> object:
        if self.flush():
            done, answer = self._done(write)
            if done:
                return answer
        self._waiting.append(write)
        return None

    def _done(self, write: Callable[[], object]) -> tuple[bool, object]:
        try:
            return True, write()
        except (Interrupted, TakenError):
            raise
        except Exception as error:
            # A database that is down lets each call wait for it.
            self._not_before_s = self._clock.seconds() + _AGAIN_S
            self._trouble(f"what happens cannot be written down now: {error}")
            return False, None


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
