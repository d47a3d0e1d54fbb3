"""A night as its reports show it, and how that is assembled from visits and verdicts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from etdeploy.core.console import count
from etdeploy.core.errors import MismatchError, NoVerdictError, RegressionError
from etdeploy.core.values import Value
from etdeploy.farm.model import (
    NOT_PLUGGED_IN,
    STOPPED,
    UNPLUGGED,
    AttemptFailure,
    AttemptResult,
    Fate,
    Health,
    Standing,
    VisitState,
)
from etdeploy.farm.verdicts.pair import Gap, PairVerdict, VerdictKind
from etdeploy.history.alerts import AlertGroup, group_alerts
from etdeploy.history.trend import Trend
from etdeploy.report.document import BAD, GOOD, WARN

if TYPE_CHECKING:
    from etdeploy.history.store.store import Store


class NightInfo(Value):
    """One night; times in UTC, ISO 8601. Without an end, it runs or was stopped."""

    id: str
    farm: str
    started_at: str
    finished_at: str | None = None


class VisitReference(Value):
    """One visit.

    Attributes:
        device: Its label, or the group where none was chosen.
        identity: Of the device; null where none was chosen.
        repeat: Counts from 1.
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
        kind: Of the error; `missed` for visits that could not run.
        message: That of the first visit.
        exit_code: Of the error; 0 for a visit that was missed.
    """

    kind: str
    message: str
    remedy: str
    exit_code: int
    places: tuple[VisitReference, ...]


class DeviceNight(Value):
    """A device in a night.

    Attributes:
        host: The last host that had it.
        done, failed, missed, waiting: Visits.
        lost, put_off: Attempts.
        health: At the end of its last attempt; null where there was none.
        warmest_celsius: Over all attempts.
        quarantined: The reason; empty if it is not.
        absent: Why it was expected and measured nothing since it was not there; else empty. Of one
            that was never there, only the label is known.
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
    absent: str = ""


class Coverage(Value):
    """How many of the expected pairs of a recipe and a device a night judged.

    Attributes:
        pairs: Those of absent devices included.
        gaps: How many are not judged, by the reason.
        absent: Labels of expected devices that were not there.
    """

    pairs: int = 0
    judged: int = 0
    gaps: dict[Gap, int] = {}
    absent: tuple[str, ...] = ()

    @property
    def percent(self) -> float:
        return 100 * self.judged / self.pairs if self.pairs else 0.0

    @property
    def text(self) -> str:
        """In a few words: `47 of 60 pairs judged; 9 disturbed; 4 expected devices absent`."""
        words = [f"{self.judged:,} of {count(self.pairs, 'pair')} judged"]
        words += [f"{n:,} {gap}" for gap, n in self.gaps.items() if gap is not Gap.ABSENT]
        if self.absent:
            words.append(f"{count(len(self.absent), 'expected device')} absent")
        return "; ".join(words)


class Totals(Value):
    """HeadlineValues of visits and of verdicts."""

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
    """A night, ready to be rendered.

    Attributes:
        verdicts: The worst first.
        failures, missed: By cause, those with most visits first.
        devices: In the order of their labels.
        done: The visits that were measured.
        trends: The series of the verdicts, in their order, as far as they were read.
        coverage: Of the expected pairs.
        required_percent: How much of them has to be judged.
        alerts: Those that the night opened, or found open, in groups with one cause.
    """

    night: NightInfo
    totals: Totals
    verdicts: tuple[PairVerdict, ...] = ()
    failures: tuple[FailureGroup, ...] = ()
    missed: tuple[FailureGroup, ...] = ()
    devices: tuple[DeviceNight, ...] = ()
    done: tuple[VisitReference, ...] = ()
    trends: tuple[Trend, ...] = ()
    coverage: Coverage = Coverage()
    required_percent: float = 0.0
    alerts: tuple[AlertGroup, ...] = ()

    @property
    def exit_code(self) -> int:
        """1 for a regression that nobody has acknowledged, else the worst failure's; else 6 if too
        little was measured or judged.
        """
        regressed = [each for each in self.verdicts if each.kind is VerdictKind.REGRESSED]
        if not all(each.acknowledged for each in regressed):
            return RegressionError.exit_code
        if self.failures:
            return max(cause.exit_code for cause in self.failures)
        is_empty = self.night.finished_at is not None and not self.totals.done
        return NoVerdictError.exit_code if is_empty or self.blocked or self.uncovered else 0

    @property
    def uncovered(self) -> str:
        """That fewer pairs were judged than is required; else empty.

        Without a requirement, one has to be judged, unless a pair only lacks earlier nights.
        """
        coverage = self.coverage
        if coverage.percent < self.required_percent:
            return (
                f"{coverage.text}: that is {coverage.percent:.0f} % of them, and "
                f"{self.required_percent:g} % are required"
            )
        is_young = any(gap in coverage.gaps for gap in (Gap.NEW, Gap.SIMULATED, Gap.WAITING))
        # A disturbed pair may lack earlier nights, too.
        is_young |= any(v.gap is Gap.DISTURBED and not v.blocked for v in self.verdicts)
        is_lost = coverage.pairs and not coverage.judged and not is_young
        return f"nothing could be judged: {coverage.text}" if is_lost else ""

    @property
    def tone(self) -> str:
        """Good only for a night that judged every pair."""
        if self.exit_code:
            return BAD
        is_whole = self.coverage.judged == self.coverage.pairs > 0
        return GOOD if is_whole and not self.acknowledged else WARN

    @property
    def summary(self) -> str:
        """The outcome and the coverage."""
        return f"{self.headline}; {self.coverage.text}" if self.coverage.pairs else self.headline

    @property
    def acknowledged(self) -> int:
        """How many pairs regressed by what a person has acknowledged."""
        return sum(bool(each.acknowledged) for each in self.verdicts)

    @property
    def blocked(self) -> str:
        """Why nothing could be judged although there are enough nights; else empty."""
        if any(each.kind is not VerdictKind.NOT_JUDGED for each in self.verdicts):
            return ""
        return "; ".join(dict.fromkeys(e.reason for e in self.verdicts if e.blocked))

    @property
    def headline(self) -> str:
        """The outcome in a few words."""
        totals = self.totals
        wrong = sum(len(c.places) for c in self.failures if c.kind == MismatchError.kind)
        words = [
            f"{number:,} {what}"
            for number, what in (
                (totals.regressed - self.acknowledged, "regressed"),
                (self.acknowledged, "regressed and acknowledged"), (totals.failed, "failed"),
                (wrong, "with wrong outputs"), (totals.missed, "missed"),
                (totals.suspected, "suspected"), (totals.improved, "improved"),
                (totals.waiting, "not yet measured"), (totals.not_judged, "not judged"),
            )
            if number
        ]  # fmt: skip
        if not self.totals.done:
            words.insert(0, "nothing was measured")
        elif self.blocked or (self.coverage.pairs and not self.coverage.judged):
            words.insert(0, "nothing could be judged")
        return ", ".join(words) or "nothing became worse"


MISSED = "missed"
_UNKNOWN = "the visit failed for an unknown reason"
_TREND_RUNS = 60
_LOG = "\nlog: "
# Messages of one cause may differ in numbers, addresses and digests.
_VARIES = re.compile(r"\b(0x)?[0-9a-f]{6,}\b|\d+(\.\d+)*")


def assemble_report(
    night: NightInfo,
    states: Sequence[VisitState],
    verdicts: Sequence[PairVerdict] = (),
    quarantined: Mapping[str, str] | None = None,
    trends: Sequence[Trend] = (),
    labels: Mapping[str, str] | None = None,
    required_percent: float = 0.0,
) -> NightReport:
    """Assemble a night's report; nothing is read here."""
    names = dict(labels or {}) | {each.identity: each.device for each in verdicts}
    failed = [s for s in states if s.standing is Standing.FAILED or _wrong(s)]
    missed = [state for state in states if state.standing is Standing.MISSED]
    done = [state for state in states if state.standing is Standing.DONE]
    return NightReport(
        night=night,
        totals=_totals(states, verdicts),
        verdicts=tuple(verdicts),
        failures=_causes(failed, names),
        missed=_causes(missed, names),
        devices=_devices(states, names, quarantined or {}),
        done=tuple(_place(state, names) for state in done),
        trends=tuple(trends),
        coverage=_coverage(states, verdicts, names),
        required_percent=required_percent,
    )


def load_trends(store: Store, verdicts: Sequence[PairVerdict]) -> tuple[Trend, ...]:
    """Load the trend of each verdict's series: of the metric that is worse, else of the first."""
    from etdeploy.history.store.store import Filter
    from etdeploy.history.trend import compute_trend

    found = []
    for verdict in verdicts:
        known = store.series(Filter(series=verdict.series)) if verdict.series else []
        for one in known:
            entries = store.entries(Filter(series=verdict.series), _TREND_RUNS)
            metric = verdict.since.metric if verdict.since else one.series.metric
            found.append(compute_trend(one.series, entries, metric, one.runs))
    return tuple(found)


def load_alerts(
    store: Store, night: NightInfo, *, is_latest: bool = False
) -> tuple[AlertGroup, ...]:
    """Load the alerts that a night opened, or found open; of the latest one all that are open."""
    from etdeploy.history.store.alerts import stored_alerts

    ended = night.finished_at or night.started_at
    with store.transaction() as connection:
        known = stored_alerts(connection, night.farm)
    return group_alerts(
        [
            alert
            for alert in known
            if (is_latest and alert.state.is_open)
            or alert.was_open_in(night.id, night.started_at, ended)
        ]
    )


def _wrong(state: VisitState) -> bool:
    """Whether its outputs differ."""
    return state.result is not None and state.result.failure is not None


_NOT_JUDGED = {
    Standing.WAITING: Gap.WAITING,
    Standing.RUNNING: Gap.WAITING,
    Standing.FAILED: Gap.FAILED,
    Standing.MISSED: Gap.MISSED,
    Standing.DONE: Gap.OTHER,
}


def _coverage(
    states: Sequence[VisitState], verdicts: Sequence[PairVerdict], names: Mapping[str, str]
) -> Coverage:
    absent = _absences(states, names)
    gaps: dict[tuple[str, str], Gap] = {}
    for standing, gap in _NOT_JUDGED.items():
        for state in states:
            device = _identity(state) or state.visit.name
            if device and state.standing is standing:
                gone = gap is Gap.MISSED and names.get(device, device) in absent
                gaps.setdefault((state.visit.recipe, device), Gap.ABSENT if gone else gap)
    for recipe, group, number in _never_placed(states):
        gaps |= {(recipe, f"{group} {i}"): Gap.MISSED for i in range(number)}
    judged = 0
    for verdict in verdicts:
        gaps.pop((verdict.recipe, verdict.identity), None)
        if verdict.kind is VerdictKind.NOT_JUDGED:
            gaps[verdict.recipe, verdict.identity] = verdict.gap or Gap.OTHER
        else:
            judged += 1
    numbers = Counter(gaps.values())
    return Coverage(
        pairs=judged + len(gaps),
        judged=judged,
        gaps={gap: numbers[gap] for gap in Gap if numbers[gap]},
        absent=tuple(sorted(absent)),
    )


def _never_placed(states: Sequence[VisitState]) -> Iterator[tuple[str, str, int]]:
    """Of groups that take a number of devices, how many of them a recipe never got."""
    wanted: dict[tuple[str, str], Counter[int]] = {}
    placed: dict[tuple[str, str], set[str]] = {}
    for state in states:
        visit = state.visit
        if visit.device is None and not visit.name:
            wanted.setdefault((visit.recipe, visit.group), Counter())[visit.repeat] += 1
            if identity := _identity(state):
                placed.setdefault((visit.recipe, visit.group), set()).add(identity)
    for of, repeats in wanted.items():
        yield *of, max(0, max(repeats.values()) - len(placed.get(of, ())))


def _absences(states: Sequence[VisitState], names: Mapping[str, str]) -> dict[str, str]:
    """Why expected devices were not there all night, by their labels."""
    found: dict[str, str] = {}
    there = {_identity(state) for state in states if state.attempts}
    for state in states:
        if state.standing is not Standing.MISSED or _identity(state) in there - {None}:
            continue
        device = state.visit.device
        if device is None and state.visit.name:
            found.setdefault(state.visit.name, state.reason)
        elif device and state.reason.startswith((UNPLUGGED, NOT_PLUGGED_IN)):
            found.setdefault(names.get(device, device), state.reason)
    return found


def _identity(state: VisitState) -> str | None:
    """Of the device that a visit is for, or was given to last."""
    last = state.result or (state.attempts[-1] if state.attempts else None)
    return last.identity if last else state.visit.device


def _totals(states: Sequence[VisitState], verdicts: Sequence[PairVerdict]) -> Totals:
    standing = Counter(state.standing for state in states)
    kinds = Counter(verdict.kind for verdict in verdicts)
    return Totals(
        visits=len(states),
        done=standing[Standing.DONE],
        failed=standing[Standing.FAILED],
        missed=standing[Standing.MISSED],
        waiting=standing[Standing.WAITING] + standing[Standing.RUNNING],
        regressed=kinds[VerdictKind.REGRESSED],
        suspected=kinds[VerdictKind.SUSPECTED],
        improved=kinds[VerdictKind.IMPROVED],
        not_judged=kinds[VerdictKind.NOT_JUDGED],
    )


def _causes(states: Sequence[VisitState], names: Mapping[str, str]) -> tuple[FailureGroup, ...]:
    groups: dict[tuple[str, str], list[tuple[AttemptFailure, VisitState]]] = {}
    of_recipe = {s.visit.recipe: e.failure for s in states for e in s.attempts if e.failure}
    for state in states:
        failure = _failure(state, of_recipe.get(state.visit.recipe))
        message = failure.message.partition(_LOG)[0]
        groups.setdefault((failure.kind, _VARIES.sub("#", message)), []).append((failure, state))
    causes = [
        FailureGroup(
            kind=group[0][0].kind,
            message=group[0][0].message,
            remedy=next((failure.remedy for failure, _ in group if failure.remedy), ""),
            exit_code=max(failure.exit_code for failure, _ in group),
            places=tuple(_place(state, names) for _, state in group),
        )
        for group in groups.values()
    ]
    return tuple(sorted(causes, key=lambda cause: (-len(cause.places), cause.message)))


def _failure(state: VisitState, of_recipe: AttemptFailure | None) -> AttemptFailure:
    """Why a visit failed or was missed."""
    if state.standing is Standing.MISSED:
        return AttemptFailure(
            kind=MISSED, exit_code=0, message=state.reason or "the reason is unknown"
        )
    failures = [ending.failure for ending in state.attempts if ending.failure]
    if state.result and state.result.failure:
        return state.result.failure
    last = failures[-1] if failures else of_recipe
    if last and state.reason.startswith(STOPPED):
        _, log, path = last.message.partition(_LOG)
        return last.model_copy(update={"message": f"{state.reason}{log}{path}"})
    if failures:
        return failures[-1]
    return AttemptFailure(kind="error", exit_code=9, message=state.reason or _UNKNOWN)


def _place(state: VisitState, names: Mapping[str, str]) -> VisitReference:
    identity = _identity(state)
    any_device = state.visit.name or f"any of {state.visit.group}"
    return VisitReference(
        visit=state.visit.id,
        recipe=state.visit.recipe,
        device=names.get(identity, identity) if identity else any_device,
        identity=identity,
        repeat=state.visit.repeat,
        attempts=len(state.attempts),
        seconds=sum(ending.seconds for ending in state.attempts),
    )


def _devices(
    states: Sequence[VisitState], names: Mapping[str, str], quarantined: Mapping[str, str]
) -> tuple[DeviceNight, ...]:
    visits: dict[str, list[VisitState]] = {identity: [] for identity in quarantined}
    endings: dict[str, list[AttemptResult]] = {}
    absent = _absences(states, names)
    never_there = Counter(state.visit.name for state in states if not _identity(state))
    for state in states:
        if identity := _identity(state):
            visits.setdefault(identity, []).append(state)
        for ending in state.attempts:
            endings.setdefault(ending.identity, []).append(ending)
            visits.setdefault(ending.identity, [])
    found = [
        _device(identity, of, endings.get(identity, []), names, quarantined.get(identity, ""))
        for identity, of in visits.items()
    ]
    found = [each.model_copy(update={"absent": absent.get(each.label, "")}) for each in found]
    found += [
        DeviceNight(identity="", label=name, host="", missed=number, absent=absent.get(name, ""))
        for name, number in never_there.items()
        if name
    ]
    return tuple(sorted(found, key=lambda device: (device.label, device.identity)))


def _device(
    identity: str,
    states: Sequence[VisitState],
    endings: Sequence[AttemptResult],
    names: Mapping[str, str],
    quarantined: str,
) -> DeviceNight:
    standing, fates = Counter(s.standing for s in states), Counter(e.fate for e in endings)
    healths = [ending.health for ending in endings if ending.health]
    warm = [h.temperature_celsius for h in healths if h.temperature_celsius is not None]
    return DeviceNight(
        identity=identity,
        label=names.get(identity, identity),
        host=endings[-1].host if endings else "",
        done=standing[Standing.DONE],
        failed=standing[Standing.FAILED],
        missed=standing[Standing.MISSED],
        waiting=standing[Standing.WAITING] + standing[Standing.RUNNING],
        lost=fates[Fate.LOST],
        put_off=fates[Fate.PUT_OFF],
        health=healths[-1] if healths else None,
        warmest_celsius=max(warm, default=None),
        quarantined=quarantined,
    )
