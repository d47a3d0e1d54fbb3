"""A night as its reports show it."""

from __future__ import annotations

from etdeploy.core.errors import DeviceError, MismatchError, RegressionError
from etdeploy.core.values import Value
from etdeploy.farm.model import Health
from etdeploy.farm.verdicts.model import PairVerdict, VerdictKind
from etdeploy.history.model import Trend


class NightInfo(Value):
    """One night.

    Attributes:
        id: Names it.
        farm: Name of the farm.
        started_at: In UTC, ISO 8601.
        finished_at: The same; null while it goes on, or where it was stopped.
    """

    id: str
    farm: str
    started_at: str
    finished_at: str | None = None


class VisitReference(Value):
    """One visit, as a person finds it again.

    Attributes:
        visit: Its id.
        recipe: The label of the recipe.
        device: As a person tells devices apart, or the group where none was chosen.
        identity: Of the device; null where none was chosen.
        repeat: Counts from 1.
        attempts: That were made.
        seconds: Wall time of all attempts.
    """

    visit: str
    recipe: str
    device: str
    identity: str | None
    repeat: int
    attempts: int = 0
    seconds: float = 0.0


class FailureGroup(Value):
    """Visits that failed, or were missed, for one reason.

    Attributes:
        kind: As an error's; `missed` for those that could not run.
        message: What happened, in the words of the first of them.
        remedy: What to do; empty where nobody knows.
        exit_code: Of the error; 0 for a visit that was missed.
        places: The visits.
    """

    kind: str
    message: str
    remedy: str
    exit_code: int
    places: tuple[VisitReference, ...]


class DeviceNight(Value):
    """A device in a night.

    Attributes:
        identity: Of the device.
        label: As a person tells devices apart.
        host: The last host that had it.
        done, failed, missed, waiting: Visits.
        lost, put_off: Attempts that were.
        health: At the end of its last attempt; null where there was none.
        warmest_celsius: Over all attempts.
        quarantined: Why it is set aside; empty if it is not.
    """

    identity: str
    label: str
    host: str
    done: int = 0
    failed: int = 0
    missed: int = 0
    waiting: int = 0
    lost: int = 0
    put_off: int = 0
    health: Health | None = None
    warmest_celsius: float | None = None
    quarantined: str = ""


class Totals(Value):
    """How many."""

    visits: int
    done: int
    failed: int
    missed: int
    waiting: int
    regressed: int
    suspected: int
    improved: int
    not_judged: int


class NightReport(Value):
    """A night, ready to be shown.

    Attributes:
        night: Which.
        totals: How many of what.
        verdicts: The worst first.
        failures: By cause, those with most visits first.
        missed: The same.
        devices: In the order of their labels.
        done: The visits that were measured.
        trends: The series of the verdicts, in their order, as far as they were asked for.
    """

    night: NightInfo
    totals: Totals
    verdicts: tuple[PairVerdict, ...] = ()
    failures: tuple[FailureGroup, ...] = ()
    missed: tuple[FailureGroup, ...] = ()
    devices: tuple[DeviceNight, ...] = ()
    done: tuple[VisitReference, ...] = ()
    trends: tuple[Trend, ...] = ()

    @property
    def exit_code(self) -> int:
        """1 for a regression, else the worst failure's; 6 if nothing was measured or judged."""
        if any(each.kind is VerdictKind.REGRESSED for each in self.verdicts):
            return RegressionError.exit_code
        if self.failures:
            return max(cause.exit_code for cause in self.failures)
        return DeviceError.exit_code if self._is_empty or self.blocked else 0

    @property
    def blocked(self) -> str:
        """Why nothing could be judged although there are enough nights; else empty."""
        if any(each.kind is not VerdictKind.NOT_JUDGED for each in self.verdicts):
            return ""
        return "; ".join(dict.fromkeys(e.reason for e in self.verdicts if e.blocked))

    @property
    def _is_empty(self) -> bool:
        """Whether it ended and nothing was measured."""
        return self.night.finished_at is not None and not self.totals.done

    @property
    def headline(self) -> str:
        """What the night gave, in a few words."""
        told = self.totals
        wrong = sum(len(c.places) for c in self.failures if c.kind == MismatchError.kind)
        words = [
            f"{number:,} {what}"
            for number, what in (
                (told.regressed, "regressed"), (told.failed, "failed"),
                (wrong, "with wrong outputs"), (told.missed, "missed"),
                (told.suspected, "suspected"), (told.improved, "improved"),
                (told.waiting, "not yet measured"), (told.not_judged, "not judged"),
            )
            if number
        ]  # fmt: skip
        if not self.totals.done:
            words.insert(0, "nothing was measured")
        elif self.blocked:
            words.insert(0, "nothing could be judged")
        return ", ".join(words) or "nothing became worse"
