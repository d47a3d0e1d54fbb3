"""One recipe on one device: its numbers against earlier nights; nothing is read here."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median

from etdeploy.compare.model import Ratio
from etdeploy.core.console import count
from etdeploy.core.values import Kind, Value
from etdeploy.farm.verdicts.rule import (
    MIN_NIGHTS,
    Deviation,
    chance_of_mean,
    distance,
    is_first_number,
    middle,
)
from etdeploy.history.changes import steps
from etdeploy.history.check import OUTPUTS
from etdeploy.history.entry import HistoryEntry
from etdeploy.history.model import differing
from etdeploy.history.series import shown

# Repeats are spread over the hours of a window, and the day lies between two windows.
_GAP_S = 6 * 3600.0
_LONGEST_S = 18 * 3600.0


@dataclass(frozen=True)
class Night:
    """Runs of one series that share a night; at least one, the earliest first."""

    entries: tuple[HistoryEntry, ...]

    def values(self, metric: str) -> tuple[float, ...]:
        """Of its runs that have the metric; only positive ones, which have a logarithm."""
        return tuple(e.metrics[metric] for e in self.entries if e.metrics.get(metric, 0) > 0)


def by_night(entries: Sequence[HistoryEntry]) -> list[Night]:
    """Runs grouped into nights, the earliest first.

    A night ends before a pause of six hours, or 18 hours after it began: a device that is measured
    all day has several.
    """
    nights: list[list[HistoryEntry]] = []
    for entry in entries:
        if nights and _together(nights[-1], entry):
            nights[-1].append(entry)
        else:
            nights.append([entry])
    return [Night(tuple(night)) for night in nights]


def _together(night: Sequence[HistoryEntry], entry: HistoryEntry) -> bool:
    first, last, this = (_seconds(e.started_at) for e in (night[0], night[-1], entry))
    if first is None or last is None or this is None:
        return night[-1].started_at == entry.started_at
    return this - last <= _GAP_S and this - first <= _LONGEST_S


def _seconds(started_at: str) -> float | None:
    try:
        return datetime.fromisoformat(started_at).timestamp()
    except ValueError:  # a record may have any text there
        return None


@dataclass(frozen=True)
class PairHistory:
    """What is known of a recipe on a device.

    Attributes:
        night: The runs that are judged, those that do not count included.
        earlier: The nights that it is judged by, the earliest first; only runs that count.
        every: Those that the baseline leaves out, too: the change may lie there.
        nights: How many there were before, those of which no run counts included.
        were_right: Whether an earlier run had right outputs, disturbed and simulated ones included.
    """

    night: Night
    earlier: tuple[Night, ...]
    every: tuple[Night, ...]
    nights: int
    were_right: bool

    @property
    def last(self) -> Night | None:
        """The night before this one."""
        return self.every[-1] if self.every else None

    @property
    def fit(self) -> Night:
        """The runs whose numbers count."""
        return Night(tuple(entry for entry in self.night.entries if entry.fit))


@dataclass(frozen=True)
class Look:
    """A number of a pair, looked at alone.

    Attributes:
        metric: Its name.
        values: Of the repeats that count.
        distance: From the earlier nights; None with too few of them.
        nights: How many earlier nights have the number.
        twice: The chance that two unchanged nights in a row are as bad as the last one and this
            one, by the nights before both; 1 where not both are worse.
    """

    metric: str
    values: tuple[float, ...]
    distance: Deviation | None
    nights: int
    twice: float = 1.0

    @property
    def at_once(self) -> float:
        """The chance that an unchanged night is as bad; 1 where one of those before it was."""
        return 1.0 if self.distance is None or self.distance.as_bad else self.distance.chance


def looks(pair: PairHistory, max_slowdown_percent: float) -> list[Look]:
    """Every number of the pair's repeats that count, those that records are compared by first."""
    fit = pair.fit
    metrics = sorted(
        dict.fromkeys(metric for entry in fit.entries for metric in entry.metrics),
        key=lambda metric: not is_first_number(metric),
    )
    return [_look(pair, fit, metric, max_slowdown_percent) for metric in metrics
            if fit.values(metric)]  # fmt: skip


def _look(pair: PairHistory, fit: Night, metric: str, max_slowdown_percent: float) -> Look:
    values = fit.values(metric)
    having = [night.values(metric) for night in pair.earlier if night.values(metric)]
    found = distance(values, having)
    twice = 1.0
    if found and found.worse(metric, max_slowdown_percent):
        twice = _twice(pair, metric, values, max_slowdown_percent)
    return Look(metric, values, found, len(having), twice)


def _twice(
    pair: PairHistory, metric: str, values: Sequence[float], max_slowdown_percent: float
) -> float:
    """The chance that two unchanged nights are as bad; 1 where not both are worse."""
    if pair.last is None or not (last := pair.last.values(metric)):
        return 1.0
    before = [night for night in pair.earlier if night.entries[0] != pair.last.entries[0]]
    having = [night.values(metric) for night in before if night.values(metric)]
    return twice_of(distance(last, having), distance(values, having), metric, max_slowdown_percent)


def twice_of(
    last: Deviation | None, this: Deviation | None, metric: str, max_slowdown_percent: float
) -> float:
    """The chance that the mean of two unchanged nights is as bad; 1 where not both are worse."""
    if last is None or this is None:
        return 1.0
    if not all(each.worse(metric, max_slowdown_percent) for each in (last, this)):
        return 1.0
    return chance_of_mean([last, this])


def finding_of(look: Look, max_slowdown_percent: float, *, discovered: bool) -> NightFinding:
    """What is found of a number, once all pairs were looked at."""
    if look.distance is None:
        have = "has" if look.nights == 1 else "have"
        nights = count(look.nights, "earlier night")
        why = f"{nights} {have} it, and {MIN_NIGHTS} are needed"
        return NightFinding(
            metric=look.metric, kind=VerdictKind.NOT_JUDGED, values=look.values,
            value=middle(look.values), nights=look.nights, reason=why,
        )  # fmt: skip
    away = look.distance
    kind = VerdictKind.NO_DIFFERENCE
    if away.worse(look.metric, max_slowdown_percent):
        kind = VerdictKind.REGRESSED if discovered else VerdictKind.SUSPECTED
    elif away.better(look.metric, max_slowdown_percent):
        kind = VerdictKind.IMPROVED
    return NightFinding(
        metric=look.metric, kind=kind, values=look.values, value=away.value,
        expected=away.expected, ratio=away.ratio, z=away.z, chance=away.chance,
        nights=away.nights, within_percent=None if away.within is None else 100 * away.within,
        reason=_reason(look, kind, max_slowdown_percent),
    )  # fmt: skip


def _reason(look: Look, kind: VerdictKind, max_slowdown_percent: float) -> str:
    away = look.distance
    if away is None:
        return ""
    percent = 100 * (away.ratio.median - 1)
    what = (
        f"{shown(look.metric, away.value)} instead of {shown(look.metric, away.expected)}, "
        f"{percent:+.1f} %"
    )
    told = f"{what}, {abs(away.z):.1f} standard deviations between nights"
    if kind is VerdictKind.SUSPECTED and away.as_bad:
        return f"{told}; {count(away.as_bad, 'earlier night')} as bad, so the next night decides"
    if kind is VerdictKind.SUSPECTED:
        return f"{told}; among so many pairs that may be chance, so the next night decides"
    if kind is VerdictKind.REGRESSED and look.twice < 1:
        return f"{told}; the last night was worse, too"
    if kind is not VerdictKind.NO_DIFFERENCE:
        return told
    if abs(percent) <= max_slowdown_percent:
        return what
    return f"{what}: within normal night-to-night variation"


def outputs_of(pair: PairHistory) -> Iterator[NightFinding]:
    """What is found of the outputs; nothing where no run compared them.

    Outputs that were never right have not become worse: they are a failure, and no regression.
    """
    compared = [entry for entry in pair.night.entries if entry.outputs_ok is not None]
    if not compared:
        return
    wrong = [entry for entry in compared if entry.outputs_ok is False]
    if not wrong:
        yield NightFinding(metric=OUTPUTS, kind=VerdictKind.NO_DIFFERENCE, reason="right")
        return
    before = "they were right before" if pair.were_right else "no earlier run shows them right"
    yield NightFinding(
        metric=OUTPUTS,
        kind=VerdictKind.REGRESSED if pair.were_right else VerdictKind.NOT_JUDGED,
        nights=len(pair.earlier),
        reason=f"wrong in {len(wrong)} of {count(len(compared), 'run')}, and {before}",
    )


def worst(findings: Sequence[NightFinding]) -> VerdictKind:
    """The worst of the findings; of those that are not judged only where none was."""
    kinds = {each.kind for each in findings}
    return next((kind for kind in ORDER if kind in kinds), VerdictKind.NOT_JUDGED)


def why_not(pair: PairHistory) -> str:
    """Why a night's numbers cannot be judged; empty where they can."""
    entries = pair.night.entries
    simulated = [entry for entry in entries if entry.simulated]
    if simulated and len(simulated) == len(entries):
        return "it was simulated, so it has no times"
    if pair.fit.entries:
        return ""
    disturbed = [entry.disturbed for entry in entries if entry.disturbed]
    if not disturbed:
        return ""  # wrong outputs speak for themselves
    which = f"all {len(entries)} runs were" if len(entries) > 1 else "it was"
    return f"{which} disturbed: {disturbed[-1]}"


def is_blocked(pair: PairHistory) -> bool:
    """Whether more nights like this one will not make its numbers judged either."""
    if pair.fit.entries:
        return len(pair.earlier) < MIN_NIGHTS <= len(pair.every)  # by the baseline
    return pair.nights >= MIN_NIGHTS and not all(e.simulated for e in pair.night.entries)


def disturbed_of(pair: PairHistory) -> Iterator[NightFinding]:
    """The first number of a night whose runs were all disturbed, to be seen and not judged."""
    odd = Night(tuple(e for e in pair.night.entries if e.disturbed and e.outputs_ok is not False))
    if pair.fit.entries:
        return
    for metric in dict.fromkeys(metric for entry in odd.entries for metric in entry.metrics):
        if is_first_number(metric) and (values := odd.values(metric)):
            yield NightFinding(
                metric=metric, kind=VerdictKind.NOT_JUDGED, values=values, value=middle(values),
                reason=why_not(pair), disturbed=True,
            )  # fmt: skip


def left_out(pair: PairHistory) -> str:
    """How many of the night's runs do not count, as a clause; empty for none."""
    entries = pair.night.entries
    odd = [entry for entry in entries if not entry.fit]
    if not odd or len(odd) == len(entries):
        return ""
    why = next((entry.disturbed for entry in odd if entry.disturbed), "wrong outputs")
    return f"{len(odd)} of {count(len(entries), 'run')} left out: {why.rstrip('.')}"


def since(pair: PairHistory, metric: str) -> Since | None:
    """When a number became worse, and between which commits."""
    nights = [night for night in pair.every if night.values(metric)]
    fit = pair.fit
    if not nights or not fit.values(metric):
        return None
    every = [*nights, fit]
    levels = [middle(night.values(metric)) for night in every]
    at = _began(levels)
    before, after = median(levels[:at]), median(levels[at:])
    old, new = _last_with(every[at - 1], metric), _first_with(every[at], metric)
    return Since(
        metric=metric, run_id=new.run_id, started_at=new.started_at, before_run_id=old.run_id,
        before=before, after=after, old_revision=old.git_revision, new_revision=new.git_revision,
        differs=differing(old, new), dated=at < len(every) - 1,
    )  # fmt: skip


def _began(levels: Sequence[float]) -> int:
    """The place of the first night of the new level, the last of which is known to be worse.

    It is where the last change upwards was found; else the first of the nights up to the last one
    that are nearer to it than to those before.
    """
    found = [step.index for step in steps(levels) if step.after > step.before]
    if found:
        return found[-1]
    limit, at = math.sqrt(min(levels) * levels[-1]), len(levels) - 1
    while at > 1 and levels[at - 1] > limit:
        at -= 1
    return at


def _first_with(night: Night, metric: str) -> HistoryEntry:
    return next(entry for entry in night.entries if entry.metrics.get(metric, 0) > 0)


def _last_with(night: Night, metric: str) -> HistoryEntry:
    return next(entry for entry in reversed(night.entries) if entry.metrics.get(metric, 0) > 0)


def families(found: Sequence[Look]) -> tuple[list[int], list[int]]:
    """The places of those that were judged: of first numbers, and of all others."""
    judged = [i for i, look in enumerate(found) if look.distance is not None]
    first = [i for i in judged if is_first_number(found[i].metric)]
    return first, [i for i in judged if not is_first_number(found[i].metric)]


class VerdictKind(Kind):
    """What was found of a number, or of a recipe on a device."""

    REGRESSED = "regressed"
    SUSPECTED = "suspected"
    """Worse than single nights usually are, but so would be some of as many pairs by chance. It
    has regressed if the next night finds the same."""
    IMPROVED = "improved"
    NO_DIFFERENCE = "no difference found"
    NOT_JUDGED = "not judged"


# The worst first.
ORDER = tuple(VerdictKind)


class NightFinding(Value):
    """One number of a night's repeats, judged.

    Attributes:
        metric: Its name; `outputs` for whether the outputs are right.
        kind: What was found.
        values: Of the repeats that count.
        value: Their median.
        expected: Median over the earlier nights.
        ratio: Value by expected, with bounds that contain 1 for 95 of 100 nights in which nothing
            changed; null where it was not judged.
        z: The distance in standard deviations between nights; positive where it is worse.
        chance: That an unchanged night is as much worse; null where it was not judged.
        nights: How many earlier nights it was judged by.
        within_percent: Standard deviation between repeats of one night; null with too few.
        reason: In a sentence.
        disturbed: Whether something disturbed all the runs, so that the value says little.
    """

    metric: str
    kind: VerdictKind
    values: tuple[float, ...] = ()
    value: float | None = None
    expected: float | None = None
    ratio: Ratio | None = None
    z: float | None = None
    chance: float | None = None
    nights: int = 0
    within_percent: float | None = None
    reason: str = ""
    disturbed: bool = False


class Since(Value):
    """When a number became worse, and between which commits.

    Attributes:
        metric: Name of the metric.
        run_id: The first run of the new level.
        started_at: When it started, in UTC.
        before_run_id: The last run of the level before.
        before: Level before.
        after: Level since.
        old_revision: Commit of the recipe's folder in the last run before; null outside a
            repository.
        new_revision: The same in the first run after.
        differs: What else is different between these two runs.
        dated: Whether earlier nights show it, too. If not, it lies between the last night and this
            one.
    """

    metric: str
    run_id: str
    started_at: str
    before_run_id: str
    before: float
    after: float
    old_revision: str | None
    new_revision: str | None
    differs: tuple[str, ...] = ()
    dated: bool = False

    @property
    def commits(self) -> str:
        """`OLD..NEW` for git; empty where they are unknown or the same."""
        if not self.old_revision or not self.new_revision:
            return ""
        same = self.old_revision == self.new_revision
        return "" if same else f"{self.old_revision[:12]}..{self.new_revision[:12]}"


class PairVerdict(Value):
    """One recipe on one device, judged by the repeats of a night.

    Attributes:
        recipe: The label of the recipe.
        identity: Of the device.
        device: As a person tells devices apart.
        series: Key of the series in the history; empty where the history has no record.
        run_ids: Of the night, in the order of their start.
        kind: The worst of the findings.
        findings: One for each number.
        reason: Why, in a sentence.
        since: When it became worse; null where nothing did.
        remedy: What to do, if possible a command to copy.
        blocked: Whether it is not judged for a reason that more nights do not remove: every run was
            disturbed, the baseline has too few nights, or the records are missing. False for one
            that is new, and for simulated runs, which have no times.
    """

    recipe: str
    identity: str
    device: str
    series: str
    run_ids: tuple[str, ...]
    kind: VerdictKind
    findings: tuple[NightFinding, ...] = ()
    reason: str = ""
    since: Since | None = None
    remedy: str = ""
    blocked: bool = False

    def finding(self, metric: str) -> NightFinding | None:
        """What was found of one number."""
        return next((each for each in self.findings if each.metric == metric), None)
