"""What a night needs beside an engine, as Protocols: a test brings parts of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from etdeploy.farm.model import (
    AttemptFailure,
    AttemptResult,
    Offer,
    Parcel,
    Standing,
    Visit,
    VisitState,
)
from etdeploy.farm.night.background import Background
from etdeploy.farm.night.planning import AttemptDurations
from etdeploy.farm.spec.model import Farm


class Clock(Protocol):
    """The time, which a simulation sets itself."""

    def now(self) -> datetime:
        """Date and time, aware of its zone; somebody may set it."""
        ...

    def seconds(self) -> float:
        """Seconds since some moment, which nobody sets."""
        ...

    def sleep(self, seconds: float) -> None:
        """Waits."""
        ...


class LedgerLike(Protocol):
    """Where the visits of a night are kept, so that it can be resumed after a crash.

    Every method may be called again with the same values, and changes nothing then.
    """

    def open_night(
        self, farm_name: str, digest: str, now: datetime
    ) -> tuple[str, Sequence[VisitState]]:
        """The night that is not finished, with its visits; else a new one without any.

        No visit is running: attempts that were under way are lost ones.
        """
        ...

    def plan(self, visits: Sequence[Visit]) -> None:
        """Adds visits."""
        ...

    def running(self, visit: str, attempt: int, identity: str, host: str, device: str = "") -> None:
        """An attempt begins."""
        ...

    def ended(self, ending: AttemptResult) -> None:
        """An attempt ended; the record of one that counts goes to the history too."""
        ...

    def give_up(self, visit: str, standing: Standing, reason: str) -> None:
        """A visit failed or was missed."""
        ...

    def finish(self, night: str) -> None:
        """The night is over."""
        ...


class ReservationLike(Protocol):
    """A person's claim on a device."""

    @property
    def owner(self) -> str: ...
    @property
    def until(self) -> datetime: ...
    def is_of(self, identity: str, host: str, device: str = "") -> bool: ...


class QuarantinedLike(Protocol):
    """A device that was set aside."""

    @property
    def reason(self) -> str: ...
    def is_of(self, identity: str, host: str, device: str = "") -> bool: ...


class ShelfLike(Protocol):
    """Whose the devices are, and which are set aside; a method may raise EtdeployError."""

    def reservations(self) -> Sequence[ReservationLike]:
        """Those that hold now."""
        ...

    def quarantined(self) -> Sequence[QuarantinedLike]:
        """All that are set aside."""
        ...

    def set_aside(self, offer: Offer, reason: str) -> None:
        """Sets a device aside until a person releases it."""
        ...


class PreparedLike(Protocol):
    """What was exported and built."""

    @property
    def parcels(self) -> Mapping[tuple[str, str], Parcel]: ...
    @property
    def failures(self) -> Mapping[tuple[str, str], AttemptFailure]: ...


Prepare = Callable[[Mapping[str, Sequence[Offer]]], PreparedLike]
"""Exports and builds for the offers of each recipe, by its label."""


class UnsatisfiedLike(Protocol):
    """What no device can measure."""

    @property
    def recipe(self) -> str: ...
    @property
    def group(self) -> str: ...
    @property
    def reason(self) -> str: ...


class PlanLike(Protocol):
    """The visits of a night, and what cannot be one."""

    @property
    def visits(self) -> Sequence[Visit]: ...
    @property
    def unsatisfied(self) -> Sequence[UnsatisfiedLike]: ...


Plan = Callable[[Farm, str, Sequence[Offer], "float | None"], PlanLike]
"""The visits for devices: `etdeploy.farm.spec.matrix.plan_night`."""

Headline = Callable[[AttemptResult], "float | None"]
"""The number that a record is compared by; None where it has none."""


@dataclass(frozen=True)
class Pace:
    """How often the night looks around, in seconds.

    Attributes:
        wait_s: At most so long it waits for an attempt to end.
        look_s: After so long it asks again which devices are there.
    """

    wait_s: float = 1.0
    look_s: float = 10.0


@dataclass(frozen=True)
class NightDependencies:
    """What a night is done with beside its engine and ledger.

    Attributes:
        prepare: Exports and builds.
        shelf: Whose the devices are.
        plan: The visits for devices.
        headline: The number of a record.
        times: How long attempts took in earlier nights.
        background: For what takes minutes; None for threads.
        opened: When the window opened; None without a window.
        until: When nothing may begin any more; None for never.
        pace: How often the night looks around.
        named: Recipes and groups that no device can measure, as far as that was told before.
    """

    prepare: Prepare
    shelf: ShelfLike
    plan: Plan
    headline: Headline
    times: AttemptDurations = field(default_factory=AttemptDurations)
    background: Background | None = None
    opened: datetime | None = None
    until: datetime | None = None
    pace: Pace = Pace()
    named: frozenset[tuple[str, str]] = frozenset()
