"""What the history says, as values: trends, and a run judged by those before it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from etdeploy.compare.model import Ratio
from etdeploy.core.values import StrEnum, Value
from etdeploy.history.changes import MIN_RUNS, LevelShift, steps
from etdeploy.history.entry import HistoryEntry, Judgement
from etdeploy.history.series import Series

# Of normal values, the median absolute deviation is this part of the standard deviation.
_MAD_TO_STDDEV = 1.4826
_SHORT = 10


def trend_of(series: Series, entries: Sequence[HistoryEntry], metric: str, runs: int) -> Trend:
    """The trend of a metric.

    Args:
        series: What the runs have in common.
        entries: Its latest runs, the earliest first.
        metric: Name of the metric.
        runs: How many runs the history has of this series.
    """
    used = [entry for entry in entries if entry.fit and metric in entry.metrics]
    values = [entry.metrics[metric] for entry in used]
    found = steps(values)
    level = values[found[-1].index :] if found else values
    return Trend(
        key=series.key,
        series=series,
        metric=metric,
        runs=runs,
        points=tuple(_point(entry, metric) for entry in entries if not entry.simulated),
        changes=tuple(_change(used, step) for step in found),
        median=median(level) if level else None,
        spread_percent=spread_percent(level),
    )


def spread_percent(values: Sequence[float]) -> float | None:
    """Robust standard deviation by the median, in percent; None with less than three values."""
    if len(values) < MIN_RUNS or not median(values):
        return None
    center = median(values)
    return 100 * _MAD_TO_STDDEV * median(abs(value - center) for value in values) / center


def differing(before: HistoryEntry, after: HistoryEntry) -> tuple[str, ...]:
    """What else differs between two runs of a series, as a reader looks for the cause."""
    return tuple(_differing(before, after))


def _differing(before: HistoryEntry, after: HistoryEntry) -> Iterator[str]:
    if before.git_revision != after.git_revision or after.git_dirty:
        yield f"recipe {_revision(before)} -> {_revision(after)}"
    for name in sorted({*before.versions, *after.versions}):
        old, new = before.versions.get(name), after.versions.get(name)
        if old != new:
            yield f"{name} {old or 'none'} -> {new or 'none'}"
    if before.program != after.program:
        yield "another program"


def _revision(entry: HistoryEntry) -> str:
    changed = " with changes" if entry.git_dirty else ""
    return (entry.git_revision or "outside a repository")[:_SHORT] + changed


def _point(entry: HistoryEntry, metric: str) -> TrendPoint:
    remark = entry.disturbed or ("" if entry.outputs_ok is not False else "wrong outputs")
    return TrendPoint(
        run_id=entry.run_id,
        started_at=entry.started_at,
        value=entry.metrics.get(metric),
        spread_percent=entry.spread_percent,
        used=entry.fit and metric in entry.metrics,
        remark=remark or ("checked: regressed" if _regressed(entry) else ""),
        git_revision=entry.git_revision,
        judgement=entry.judgement,
    )


def _regressed(entry: HistoryEntry) -> bool:
    return entry.judgement is Judgement.REGRESSED


def _change(used: Sequence[HistoryEntry], step: LevelShift) -> LevelChange:
    first = used[step.index]
    return LevelChange(
        run_id=first.run_id,
        started_at=first.started_at,
        before=step.before,
        after=step.after,
        ratio=step.after / step.before if step.before else 1.0,
        differs=differing(used[step.index - 1], first),
    )


class TrendPoint(Value):
    """A run in a trend.

    Attributes:
        run_id: Names it.
        started_at: In UTC, ISO 8601.
        value: Of the metric; null for a run that does not have it.
        spread_percent: Between its starts.
        used: Whether the value counts. That of a disturbed run, or of one with wrong outputs, is
            shown only.
        remark: Why it does not.
        git_revision: Commit of the recipe's folder.
        judgement: Of the last check of it.
    """

    run_id: str
    started_at: str
    value: float | None
    spread_percent: float | None
    used: bool
    remark: str
    git_revision: str | None
    judgement: Judgement | None


class LevelChange(Value):
    """A change of level.

    Attributes:
        run_id: The first run of the new level.
        started_at: When it started.
        before: Median before.
        after: Median since.
        ratio: After by before.
        differs: What else is different in that run from the last one before it.
    """

    run_id: str
    started_at: str
    before: float
    after: float
    ratio: float
    differs: tuple[str, ...]


class Trend(Value):
    """One metric of one series over time.

    Attributes:
        key: Of the series.
        series: What its records have in common.
        metric: Name of the metric.
        runs: How many the history has.
        points: The latest of them, the earliest first.
        changes: Of level.
        median: Since the last change; null without a run that counts.
        spread_percent: Between runs since the last change: a robust standard deviation by the
            median; null with less than three.
    """

    key: str
    series: Series
    metric: str
    runs: int
    points: tuple[TrendPoint, ...]
    changes: tuple[LevelChange, ...]
    median: float | None
    spread_percent: float | None


class CheckVerdict(StrEnum):
    """What a check found."""

    PASSED = "passed"
    REGRESSED = "regressed"
    NOT_ENOUGH_HISTORY = "not enough history"
    NOT_COMPARABLE = "not comparable"
    NOT_JUDGED = "not judged"


class FindingKind(StrEnum):
    """What a check found of one number."""

    REGRESSED = "regressed"
    IMPROVED = "improved"
    NO_DIFFERENCE = "no difference found"
    NOT_JUDGED = "not judged"


class MetricFinding(Value):
    """One number of a run, judged.

    Attributes:
        metric: Its name; `outputs` for whether the outputs are right.
        kind: What was found.
        value: Of the run.
        expected: Median of the earlier runs, or the value of the run that it is checked against.
        ratio: Value by expected, with bounds that contain 1 for 95 of 100 runs in which nothing
            changed; null where it was not judged.
        z: The distance in standard deviations between runs; positive where it is worse.
        earlier: How many runs it was judged by.
        reason: In a sentence.
    """

    metric: str
    kind: FindingKind
    value: float | None = None
    expected: float | None = None
    ratio: Ratio | None = None
    z: float | None = None
    earlier: int = 0
    reason: str = ""


class Check(Value):
    """A run judged by those before it.

    Attributes:
        run_id: The run.
        against: What it was judged by, in words.
        verdict: What was found.
        reason: Why, in a sentence.
        max_slowdown_percent: What is allowed.
        findings: One for each number.
        earlier: The runs that it was judged by, the earliest first.
        needed: How many are needed.
    """

    run_id: str
    against: str
    verdict: CheckVerdict
    reason: str
    max_slowdown_percent: float
    findings: tuple[MetricFinding, ...] = ()
    earlier: tuple[str, ...] = ()
    needed: int = 0
