"""The values of a running night: its rules, why a device cannot be used, what is told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from etdeploy.core.errors import Interrupted
from etdeploy.core.values import StrEnum
from etdeploy.farm.model import AttemptResult, AvailableDevice, Gates, Order, VisitState
from etdeploy.farm.spec.model import Farm


@dataclass(frozen=True)
class Rules:
    """What the night is decided by.

    Attributes:
        retries: Further attempts after a failure.
        stop_after: A recipe that fails on so many devices, and on none succeeded, is stopped.
        quarantine_after: A device on which so many attempts in a row fail is quarantined.
        most_unspent: How often a visit may be lost or put off, which uses up no attempt.
        patience_s: Without a window, how long the night waits for devices that are away or
            reserved while nothing else is left to do.
        gates: What a device has to be.
        limit_s: Of one attempt.
    """

    retries: int = 2
    stop_after: int = 3
    quarantine_after: int = 3
    most_unspent: int = 10
    patience_s: float = 900.0
    gates: Gates = field(default_factory=Gates)
    limit_s: float = 3600.0

    @classmethod
    def of(cls, farm: Farm) -> Rules:
        """Those of a farm.yaml."""
        return cls(
            retries=farm.retries,
            stop_after=farm.stop_after,
            quarantine_after=farm.quarantine_after,
            gates=farm.gates,
            limit_s=farm.limit_s,
        )


class UnavailableKind(StrEnum):
    """Why a device gets no visit now."""

    AWAY = "away"
    PROBLEM = "problem"
    RESERVED = "reserved"
    QUARANTINED = "quarantined"
    RECOVERING = "recovering"
    HOST = "host"


@dataclass(frozen=True)
class Unavailable:
    """Why a device gets no visit now.

    Attributes:
        kind: The kind of reason.
        text: For people, as the end of a sentence about the device: `unplugged since 02:13`.
        until: When it ends, if that is known.
    """

    kind: UnavailableKind
    text: str
    until: datetime | None = None


class EventKind(StrEnum):
    """What happened."""

    PLANNED = "planned"
    STARTED = "started"
    ENDED = "ended"
    FINISHED = "finished"
    TOLD = "told"
    TROUBLE = "trouble"


@dataclass(frozen=True)
class Event:
    """Something that a person who watches the night wants to see.

    Attributes:
        kind: PLANNED of visits, STARTED and ENDED of an attempt, FINISHED of a visit; TOLD and
            TROUBLE have a text.
        text: In a sentence.
        order: Of the attempt, for STARTED.
        ending: Of the attempt, for ENDED.
        state: Of the visit, as it is now.
        offer: The device that the visit was last given to, where there was one.
        states: Of the visits that are new, or known from before, for PLANNED.
    """

    kind: EventKind
    text: str = ""
    order: Order | None = None
    ending: AttemptResult | None = None
    state: VisitState | None = None
    offer: AvailableDevice | None = None
    states: tuple[VisitState, ...] = ()


@dataclass(frozen=True)
class NightEnd:
    """A night that is over, or was stopped.

    Attributes:
        night: Its id.
        states: Of all its visits.
        stopped: Whether it was stopped before its end, and can be gone on with.
        devices: Those that were seen, by identity.
        quarantined: Reasons, by identity, of devices that this night has quarantined.
        unsatisfied: `RECIPE on GROUP` of the matrix that no device could measure.
    """

    night: str
    states: tuple[VisitState, ...]
    stopped: bool = False
    devices: dict[str, AvailableDevice] = field(default_factory=dict)
    quarantined: dict[str, str] = field(default_factory=dict)
    unsatisfied: tuple[str, ...] = ()


class EventSink:
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

    def report_errors(self, act: Callable[[], object], otherwise: str) -> bool:
        """Does what must not end the night if it fails; whether it was done."""
        try:
            act()
        except Interrupted:
            raise
        except Exception as error:
            self.trouble(f"{otherwise}: {error}")
            return False
        return True


def listed(names: Sequence[str], most: int = 3) -> str:
    """The first of several names, and how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")
