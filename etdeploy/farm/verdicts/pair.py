"""One recipe on one device: its numbers against earlier nights; nothing is read here."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from etdeploy.compare.model import Ratio
from etdeploy.core.console import count
from etdeploy.core.values import StrEnum, Value, cached_property
from etdeploy.farm.verdicts.rule import (
    MIN_NIGHTS,
    Deviation,
    Shift,
    find_shift,
    geometric_median,
    is_headline_metric,
    measure_deviation,
)
from etdeploy.history.check import OUTPUTS
from etdeploy.history.entry import commit_range
from etdeploy.history.series import format_metric
from etdeploy.history.trend import Night, describe_changes, find_level_shifts


class VerdictKind(StrEnum):
    """The verdict on a number, or on a recipe on a device; the worst first."""

    REGRESSED = "regressed"
    SUSPECTED = "suspected"
    """Worse than single nights usually are, which some of many pairs are by chance. It has
    regressed once enough nights show the same."""
    IMPROVED = "improved"
    NO_DIFFERENCE = "no difference found"
    NOT_JUDGED = "not judged"


class Gap(StrEnum):
    """Why a recipe on a device has no verdict, in the order of a report."""

    DISTURBED = "disturbed"
    FAILED = "failed"
    MISSED = "missed"
    WAITING = "not yet measured"
    NEW = "with too few nights"
    BASELINE = "without a baseline"
    SIMULATED = "simulated"
    OTHER = "not judged"
    ABSENT = "on absent devices"


class NightFinding(Value):
    """One number of a night's repeats, judged.

    Attributes:
        metric: Its name; `outputs` for whether the outputs are right.
        values: Of the repeats that count; `value` is their median.
        expected: Median over the earlier nights.
        ratio: Value by expected, with bounds that contain 1 for 95 of 100 unchanged nights; null
            where it was not judged.
        z: The distance in standard deviations between nights; positive where it is worse.
        chance: That an unchanged night is as much worse; null where it was not judged.
        nights: How many earlier nights it was judged by.
        within_percent: Standard deviation between repeats of one night; null with too few.
        disturbed: Whether something disturbed all the runs, so that the value says little.
        alert: The open alert of an earlier night that it is about; null for none.
        acknowledged: By whom, where a person has answered for the regression; else empty.
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
    alert: int | None = None
    acknowledged: str = ""


class Since(Value):
    """When a number became worse, and between which commits.

    Attributes:
        run_id, started_at: The first run of the new level, and its start in UTC.
        before_run_id: The last run of the level before.
        before, after: The two levels.
        old_revision: Commit of the recipe's folder in the last run before; null outside a
            repository. `new_revision` is that of the first run after.
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
        """The commits between both levels, for git; see `commit_range`."""
        return commit_range(self.old_revision, self.new_revision)


class PairVerdict(Value):
    """One recipe on one device, judged by the repeats of a night.

    Attributes:
        recipe: The label of the recipe.
        device: The device's label; `identity` is unique.
        series: Key of the series in the history; empty where the history has no record.
        run_ids: Of the night, in the order of their start.
        kind: The worst of the findings, of which there is one for each number.
        since: When it became worse; null where nothing did.
        remedy: A command to copy, if possible.
        blocked: Whether it is not judged for a reason that more nights do not remove: every run was
            disturbed, the baseline has too few nights, or the records are missing. False for one
            that is new, and for simulated runs, which have no times.
        gap: Why it is not judged; null where it is.
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
    gap: Gap | None = None

    @property
    def acknowledged(self) -> str:
        """By whom, where a person has answered for each number that regressed; else empty."""
        regressed = [each for each in self.findings if each.kind is VerdictKind.REGRESSED]
        named = [each.acknowledged for each in regressed]
        return ", ".join(dict.fromkeys(named)) if named and all(named) else ""

    @property
    def text(self) -> str:
        """The verdict, with who has acknowledged a regression."""
        return f"{self.kind}, {self.acknowledged}" if self.acknowledged else str(self.kind)

    def finding(self, metric: str) -> NightFinding | None:
        return next((each for each in self.findings if each.metric == metric), None)


@dataclass(frozen=True)
class PairHistory:
    """A recipe on a device in this night and before.

    Attributes:
        night: The runs that are judged, those that do not count included.
        earlier: The nights that it is judged by, the earliest first; only runs that count.
        every: Those that the baseline leaves out, too: the change may lie there.
        nights: How many there were before, those of which no run counts included.
        were_right: Whether an earlier run had right outputs, disturbed and simulated ones included.
        accepted: By a metric, since when its level is accepted: nights before do not count.
    """

    night: Night
    earlier: tuple[Night, ...]
    every: tuple[Night, ...]
    nights: int
    were_right: bool
    accepted: Mapping[str, str] = field(default_factory=dict)

    @property
    def fit(self) -> Night:
        """The runs whose numbers count."""
        return Night(tuple(entry for entry in self.night.entries if entry.fit))


@dataclass(frozen=True)
class MetricResult:
    """A number of a pair, compared with earlier nights on its own.

    Attributes:
        values: Of the repeats that count.
        earlier: Of the nights that it is judged by.
        levels: Of every night, this one last.
        counts: Which of these it is judged by.
    """

    metric: str
    values: tuple[float, ...]
    earlier: tuple[tuple[float, ...], ...]
    levels: tuple[float, ...]
    counts: tuple[bool, ...]

    @cached_property
    def deviation(self) -> Deviation | None:
        """From the earlier nights; None with too few of them."""
        return self.deviation_before(1)

    def deviation_before(self, last_nights: int) -> Deviation | None:
        """From the nights before the last ones, of which this night is one."""
        later = sum(self.counts[len(self.counts) - last_nights :])
        return measure_deviation(self.values, self.earlier[: len(self.earlier) - later])


def compare_metrics(pair: PairHistory) -> list[MetricResult]:
    """Compare every number of the repeats that count, headline metrics first."""
    fit = pair.fit
    metrics = sorted(
        dict.fromkeys(metric for entry in fit.entries for metric in entry.metrics),
        key=lambda metric: not is_headline_metric(metric),
    )
    return [
        _compare_metric(pair, metric, values)
        for metric in metrics
        if (values := fit.values(metric))
    ]


def _compare_metric(pair: PairHistory, metric: str, values: tuple[float, ...]) -> MetricResult:
    since = pair.accepted.get(metric, "")
    earlier = [night for night in pair.earlier if night.entries[-1].started_at >= since]
    judged_by = {night.entries[0].run_id for night in earlier}
    every = [
        (night, found)
        for night in pair.every
        if night.entries[-1].started_at >= since and (found := night.values(metric))
    ]
    counts = [night.entries[0].run_id in judged_by for night, _ in every]
    levels = [geometric_median(found) for _, found in every]
    return MetricResult(
        metric,
        values,
        tuple(found for night in earlier if (found := night.values(metric))),
        (*levels, geometric_median(values)),
        (*counts, False),
    )


def judge_metric(
    result: MetricResult, allowed_percent: float, *, correlated: float = 0.0, together: int = 0
) -> NightFinding:
    """Judge a number, once those of all pairs were compared.

    Args:
        result: The number.
        allowed_percent: Smaller changes are none.
        correlated: Correlation of neighbouring nights on the device.
        together: On how many devices the recipe is slower than ever in this night; 0 where that is
            not nearly all of them.
    """
    away, nights = result.deviation, len(result.earlier)
    if away is None:
        have = "has" if nights == 1 else "have"
        return NightFinding(
            metric=result.metric, kind=VerdictKind.NOT_JUDGED, values=result.values,
            value=geometric_median(result.values), nights=nights,
            reason=f"{count(nights, 'earlier night')} {have} it, and {MIN_NIGHTS} are needed",
        )  # fmt: skip
    kind = VerdictKind.NO_DIFFERENCE
    shift = find_shift(result.levels, allowed_percent, correlated=correlated, counts=result.counts)
    slower = away.is_worse(result.metric, allowed_percent)
    if shift:
        kind, away = VerdictKind.REGRESSED, result.deviation_before(shift.nights) or away
    elif slower:
        kind = VerdictKind.REGRESSED if together else VerdictKind.SUSPECTED
    elif away.is_better(result.metric, allowed_percent):
        kind = VerdictKind.IMPROVED
    return NightFinding(
        metric=result.metric, kind=kind, values=result.values, value=away.value,
        expected=away.expected, ratio=away.ratio, z=away.z, chance=away.p_value,
        nights=away.nights, within_percent=None if away.within is None else 100 * away.within,
        reason=_reason(result, away, kind, shift, together, allowed_percent),
    )  # fmt: skip


def _reason(
    result: MetricResult,
    away: Deviation,
    kind: VerdictKind,
    shift: Shift | None,
    together: int,
    allowed_percent: float,
) -> str:
    percent = 100 * (away.ratio.median - 1)
    now, before = (format_metric(result.metric, value) for value in (away.value, away.expected))
    change = f"{now} instead of {before}, {percent:+.1f} %"
    if kind is VerdictKind.NO_DIFFERENCE:
        is_small = abs(percent) <= allowed_percent
        return change if is_small else f"{change}: within normal night-to-night variation"
    text = f"{change}, {abs(away.z):.1f} standard deviations between nights"
    if kind is VerdictKind.SUSPECTED and away.count_not_better:
        nights = count(away.count_not_better, "earlier night")
        return f"{text}; {nights} as bad, so the next nights decide"
    if kind is VerdictKind.SUSPECTED:
        return f"{text}; one night may be chance, so the next nights decide"
    if shift and shift.nights > 1:
        level = 100 * (shift.ratio - 1)
        return f"{text}; the last {shift.nights} nights were {level:+.1f} % away together"
    if kind is VerdictKind.REGRESSED and not shift:
        return f"{text}; on {together} devices at once"
    return text


def judge_outputs(pair: PairHistory) -> Iterator[NightFinding]:
    """Judge the outputs; yield nothing where no run compared them.

    Outputs that were never right have not become worse: they are a failure, not a regression.
    """
    compared = [entry for entry in pair.night.entries if entry.outputs_ok is not None]
    wrong = [entry for entry in compared if entry.outputs_ok is False]
    if wrong:
        before = "they were right before" if pair.were_right else "no earlier run shows them right"
        yield NightFinding(
            metric=OUTPUTS,
            kind=VerdictKind.REGRESSED if pair.were_right else VerdictKind.NOT_JUDGED,
            nights=len(pair.earlier),
            reason=f"wrong in {len(wrong)} of {count(len(compared), 'run')}, and {before}",
        )
    elif compared:
        yield NightFinding(metric=OUTPUTS, kind=VerdictKind.NO_DIFFERENCE, reason="right")


def worst_kind(findings: Sequence[NightFinding]) -> VerdictKind:
    """The worst of the findings; `not judged` only where none was judged."""
    kinds = {each.kind for each in findings}
    return next((kind for kind in VerdictKind if kind in kinds), VerdictKind.NOT_JUDGED)


def reason_not_judged(pair: PairHistory) -> str:
    """Why a night's numbers cannot be judged; empty where they can."""
    entries = pair.night.entries
    if all(entry.simulated for entry in entries):
        return "it was simulated, so it has no times"
    disturbed = [entry.disturbed for entry in entries if entry.disturbed]
    if pair.fit.entries or not disturbed:
        return ""  # wrong outputs speak for themselves
    which = f"all {len(entries)} runs were" if len(entries) > 1 else "it was"
    return f"{which} disturbed: {disturbed[-1]}"


def is_blocked(pair: PairHistory) -> bool:
    """Whether more nights like this one will not make its numbers judged either."""
    if pair.fit.entries:
        return len(pair.earlier) < MIN_NIGHTS <= len(pair.every)  # by the baseline
    return pair.nights >= MIN_NIGHTS and not all(e.simulated for e in pair.night.entries)


def gap_of(pair: PairHistory) -> Gap:
    """Why a pair without a verdict has none."""
    entries = pair.night.entries
    if all(entry.simulated for entry in entries):
        return Gap.SIMULATED
    if not pair.fit.entries:
        return Gap.DISTURBED if any(entry.disturbed for entry in entries) else Gap.OTHER
    if len(pair.earlier) >= MIN_NIGHTS:
        return Gap.OTHER
    return Gap.NEW if len(pair.earlier) == len(pair.every) else Gap.BASELINE


def show_disturbed(pair: PairHistory) -> Iterator[NightFinding]:
    """Yield the headline metric of a night whose runs were all disturbed, without a verdict."""
    odd = Night(tuple(e for e in pair.night.entries if e.disturbed and e.outputs_ok is not False))
    if pair.fit.entries:
        return
    for metric in dict.fromkeys(metric for entry in odd.entries for metric in entry.metrics):
        if is_headline_metric(metric) and (values := odd.values(metric)):
            yield NightFinding(
                metric=metric, kind=VerdictKind.NOT_JUDGED, values=values,
                value=geometric_median(values), reason=reason_not_judged(pair), disturbed=True,
            )  # fmt: skip


def left_out_text(pair: PairHistory) -> str:
    """How many of the night's runs do not count, as a clause; empty for none."""
    entries = pair.night.entries
    odd = [entry for entry in entries if not entry.fit]
    if not odd or len(odd) == len(entries):
        return ""
    why = next((entry.disturbed for entry in odd if entry.disturbed), "wrong outputs")
    return f"{len(odd)} of {count(len(entries), 'run')} left out: {why.rstrip('.')}"


def show_zeros(pair: PairHistory) -> Iterator[NightFinding]:
    """Yield each headline metric that is 0 in every run of a night: a ratio to it says nothing."""
    entries = pair.fit.entries
    for metric in dict.fromkeys(metric for entry in entries for metric in entry.metrics):
        if is_headline_metric(metric) and not pair.fit.values(metric):
            reason = "it is 0 in every run, which nothing can be compared with"
            yield NightFinding(metric=metric, kind=VerdictKind.NOT_JUDGED, reason=reason)


def date_change(pair: PairHistory, metric: str) -> Since | None:
    """Find when a number became worse, and between which commits."""
    nights = [night for night in pair.every if night.values(metric)]
    fit = pair.fit
    if not nights or not fit.values(metric):
        return None
    every = [*nights, fit]
    levels = [geometric_median(night.values(metric)) for night in every]
    at = _first_of_new_level(levels)
    before, after = median(levels[:at]), median(levels[at:])
    old = [e for e in every[at - 1].entries if e.metrics.get(metric, 0) > 0][-1]
    new = next(e for e in every[at].entries if e.metrics.get(metric, 0) > 0)
    return Since(
        metric=metric, run_id=new.run_id, started_at=new.started_at, before_run_id=old.run_id,
        before=before, after=after, old_revision=old.git_revision, new_revision=new.git_revision,
        differs=describe_changes(old, new), dated=at < len(every) - 1,
    )  # fmt: skip


def _first_of_new_level(levels: Sequence[float]) -> int:
    """The place of the first night of the new level, the last of which is known to be worse.

    It is where the last change upwards was found; else the first of the nights up to the last one
    that are nearer to it than to those before.
    """
    found = [step.index for step in find_level_shifts(levels) if step.after > step.before]
    if found:
        return found[-1]
    limit, at = math.sqrt(min(levels) * levels[-1]), len(levels) - 1
    while at > 1 and levels[at - 1] > limit:
        at -= 1
    return at
