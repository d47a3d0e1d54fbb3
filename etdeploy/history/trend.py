"""Where a series of numbers changed its level.

A series is cut in two where the ranks of both sides differ most (by the standardized rank sum of
Wilcoxon), and each part again, as long as a permutation test says that values in random order
differ as much in less than 1 % of all cases. Where no single cut passes, the stretch inside that
differs most from the rest is tried in the same way, so that a regression that was mended is found.
That is binary segmentation, with the step of circular binary segmentation (Olshen and others,
2004), on ranks, which do not mind odd values. The test takes the values for independent of each
other: a slow drift is found as one or more steps.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median
from typing import TYPE_CHECKING, Any

from etdeploy.core.values import Value
from etdeploy.history.alerts import Alert
from etdeploy.history.entry import CHECKOUT, DEVICE_STATE, HistoryEntry, Judgement
from etdeploy.history.series import TITLES, Series, base_metric

# Of normal values, the median absolute deviation is this part of the standard deviation.
_MAD_TO_STDDEV = 1.4826
_SHORT = 10


def compute_trend(series: Series, entries: Sequence[HistoryEntry], metric: str, runs: int) -> Trend:
    """The trend of a metric.

    Args:
        series: What the runs have in common.
        entries: Its latest runs, the earliest first.
        metric: Name of the metric.
        runs: How many runs the history has of this series.
    """
    used = [entry for entry in entries if entry.fit and metric in entry.metrics]
    values = [entry.metrics[metric] for entry in used]
    found = find_level_shifts(values)
    level = values[found[-1].index :] if found else values
    return Trend(
        key=series.key,
        series=series,
        metric=metric,
        runs=runs,
        points=tuple(_point(entry, metric) for entry in entries if not entry.simulated),
        changes=tuple(_change(used[step.index - 1], used[step.index], step) for step in found),
        median=median(level) if level else None,
        spread_percent=spread_percent(level),
    )


# Repeats are spread over the hours of a window, and the day lies between two windows.
_GAP_S = 6 * 3600.0
_LONGEST_S = 18 * 3600.0


@dataclass(frozen=True)
class Night:
    """Runs of one series that share a night; at least one, the earliest first."""

    entries: tuple[HistoryEntry, ...]

    def values(self, metric: str) -> tuple[float, ...]:
        """Values of the runs that have the metric; only positive ones, which have a logarithm."""
        return tuple(e.metrics[metric] for e in self.entries if e.metrics.get(metric, 0) > 0)


def group_by_night(entries: Sequence[HistoryEntry]) -> list[Night]:
    """Group runs into nights, the earliest first.

    A night ends before a pause of six hours, or 18 hours after it began: a device that is measured
    all day has several.
    """
    nights: list[list[HistoryEntry]] = []
    first = last = 0.0
    for entry in entries:
        time = _timestamp(entry)
        if nights and _is_same_night(nights[-1][-1], entry, time, first, last):
            nights[-1].append(entry)
        else:
            nights.append([entry])
            first = time
        last = time
    return [Night(tuple(night)) for night in nights]


def _timestamp(entry: HistoryEntry) -> float:
    try:
        return datetime.fromisoformat(entry.started_at).timestamp()
    except ValueError:  # a record may have any text there
        return math.nan


def _is_same_night(
    before: HistoryEntry, entry: HistoryEntry, time: float, first: float, last: float
) -> bool:
    if math.isnan(time + first + last):
        return before.started_at == entry.started_at
    return time - last <= _GAP_S and time - first <= _LONGEST_S


@dataclass(frozen=True)
class MetricLevels:
    """The levels of one metric over nights, as `SeriesTrends` has them.

    Attributes:
        latest: Median of the last night that has the metric.
        median: Since the last change.
        spread_percent: Between nights since the last change.
        changes: From level to level.
        values: A median for each night that counts.
    """

    latest: float
    median: float
    spread_percent: float | None
    changes: tuple[LevelChange, ...]
    values: tuple[float, ...]


@dataclass(frozen=True)
class SeriesTrends:
    """All metrics of a series over all of its nights.

    Attributes:
        series: What the runs have in common.
        nights: Of the runs that are shown; simulated ones are not among them.
        levels: By metric, the one that runs are compared by first.
        alerts: Of its metrics, the latest first.
    """

    series: Series
    nights: tuple[Night, ...]
    levels: Mapping[str, MetricLevels]
    alerts: tuple[Alert, ...] = ()


def compute_series_trends(
    series: Series, entries: Sequence[HistoryEntry], alerts: Sequence[Alert] = ()
) -> SeriesTrends:
    """The levels of every metric, from night to night.

    Repeats of one night are not independent of each other, so each night is one value. A series
    with too few nights for a change is compared from run to run.

    Args:
        series: What the runs have in common.
        entries: The earliest first.
        alerts: Of the series.
    """
    shown = [entry for entry in entries if not entry.simulated]
    nights = group_by_night(shown)
    units = nights if len(nights) >= 2 * MIN_RUNS else [Night((entry,)) for entry in shown]
    names = {name for entry in shown if entry.fit for name in entry.metrics}
    order = [series.metric, *TITLES]
    ordered = sorted(names, key=lambda name: (name != series.metric, _place(name, order), name))
    levels = {name: _levels(units, name) for name in ordered}
    return SeriesTrends(series, tuple(nights), levels, tuple(alerts))


def _place(metric: str, order: Sequence[str]) -> int:
    name = base_metric(metric)
    return order.index(name) if name in order else len(order)


def _levels(nights: Sequence[Night], metric: str) -> MetricLevels:
    used = [
        [entry for entry in night.entries if entry.fit and metric in entry.metrics]
        for night in nights
    ]
    used = [entries for entries in used if entries]
    values = [median(entry.metrics[metric] for entry in entries) for entries in used]
    shifts = find_level_shifts(values)
    level = values[shifts[-1].index :] if shifts else values
    return MetricLevels(
        latest=values[-1],
        median=median(level),
        spread_percent=spread_percent(level),
        changes=tuple(_change(used[s.index - 1][-1], used[s.index][0], s) for s in shifts),
        values=tuple(values),
    )


def spread_percent(values: Sequence[float]) -> float | None:
    """Robust standard deviation by the median, in percent; None with less than three values."""
    if len(values) < MIN_RUNS or not median(values):
        return None
    center = median(values)
    return 100 * _MAD_TO_STDDEV * median(abs(value - center) for value in values) / center


def describe_changes(before: HistoryEntry, after: HistoryEntry) -> tuple[str, ...]:
    """What else differs between two runs of a series, as a reader looks for the cause."""
    return tuple(_describe_changes(before, after))


def _describe_changes(before: HistoryEntry, after: HistoryEntry) -> Iterator[str]:
    if before.git_revision != after.git_revision or after.git_dirty:
        yield f"recipe {_revision(before)} -> {_revision(after)}"
    yield from describe_environment(before, after)
    if before.program != after.program:
        yield "another program"


def describe_environment(before: HistoryEntry, after: HistoryEntry) -> Iterator[str]:
    """Tools, the system of the device and its settings that differ between two runs."""
    for name in sorted({*before.versions, *after.versions}):
        old, new = before.versions.get(name), after.versions.get(name)
        unknown = name in (*DEVICE_STATE, CHECKOUT) and None in (old, new)
        if old != new and not unknown:
            yield f"{name} {old or 'none'} -> {new or 'none'}"


def _revision(entry: HistoryEntry) -> str:
    changed = " with changes" if entry.git_dirty else ""
    return (entry.git_revision or "outside a repository")[:_SHORT] + changed


def _point(entry: HistoryEntry, metric: str) -> TrendPoint:
    return TrendPoint(
        run_id=entry.run_id,
        started_at=entry.started_at,
        value=entry.metrics.get(metric),
        spread_percent=entry.spread_percent,
        used=entry.fit and metric in entry.metrics,
        remark=describe_remark(entry),
        git_revision=entry.git_revision,
        judgement=entry.judgement,
    )


def describe_remark(entry: HistoryEntry) -> str:
    """Why a run does not count, or what a check found of it; else empty."""
    wrong = "wrong outputs" if entry.outputs_ok is False else ""
    found = "checked: regressed" if entry.judgement is Judgement.REGRESSED else ""
    return entry.disturbed or wrong or found


def _change(last: HistoryEntry, first: HistoryEntry, step: LevelShift) -> LevelChange:
    return LevelChange(
        run_id=first.run_id,
        started_at=first.started_at,
        before=step.before,
        after=step.after,
        ratio=step.after / step.before if step.before else 1.0,
        differs=describe_changes(last, first),
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


if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

MIN_RUNS = 3
"""On either side of a change: a single odd value is none."""
_MIN_INSIDE = 5
"""In a stretch inside: there are many short ones, and some of them differ by chance."""
MIN_CHANGE_PERCENT = 1.0
"""Smaller changes of the median are not reported, however certain they are."""
# Of each of the two tests, so that together they find a change in 1 % of what has none.
_LEVEL = 0.005
# Enough for that level, and few enough for a long series: the windows grow with its square.
_PERMUTATIONS, _FEW_PERMUTATIONS, _LONG = 499, 199, 120
_FIRST, _NEXT = 7, 42
# The same history has the same changes each time it is shown.
_SEED = 1


@dataclass(frozen=True)
class LevelShift:
    """A change of level.

    Attributes:
        index: Of the first value of the new level.
        before: Median of the level before, as far as the change before that.
        after: Median of the new level, as far as the next change.
    """

    index: int
    before: float
    after: float


def find_level_shifts(values: Sequence[float]) -> list[LevelShift]:
    """The changes of level in a series, in its order.

    Args:
        values: In the order of their time; finite numbers.
    """
    if len(values) < 2 * MIN_RUNS:
        return []
    import numpy as np

    draw = np.random.default_rng(_SEED)
    every = np.asarray(values, dtype=float)
    edges = [0, *_splits(every, 0, draw), len(values)]
    for i in range(1, len(edges) - 1):
        edges[i] = edges[i - 1] + _best_cut(every[edges[i - 1] : edges[i + 1]])
    levels = [median(values[a:b]) for a, b in itertools.pairwise(edges)]
    return [LevelShift(edges[i], levels[i - 1], levels[i]) for i in range(1, len(levels))]


def _best_cut(values: Array) -> int:
    """Where two levels fit best: the least sum of distances from their medians.

    Ranks show that there is a change, but not exactly where: near an end of the series, values that
    are slightly higher by chance count as much as those of the new level.
    """
    import numpy as np

    def distance(part: Array) -> float:
        return float(np.abs(part - np.median(part)).sum())

    cuts = range(MIN_RUNS, len(values) - MIN_RUNS + 1)
    return min(cuts, key=lambda cut: distance(values[:cut]) + distance(values[cut:]))


def _splits(values: Array, offset: int, draw: np.random.Generator) -> list[int]:
    """Where the values are cut, in the whole series' numbers."""
    if len(values) < 2 * MIN_RUNS:
        return []
    cuts = _stretch(values, draw, inside=False) or _stretch(values, draw, inside=True)
    edges = [0, *cuts, len(values)]
    parts = [values[a:b] for a, b in itertools.pairwise(edges)]
    levels = [median(part.tolist()) for part in parts]
    if not any(_is_large(a, b) for a, b in itertools.pairwise(levels)):
        return []
    found = [offset + cut for cut in cuts]
    for start, part in zip(edges, parts, strict=False):
        found += _splits(part, offset + start, draw)
    return sorted(found)


def _stretch(values: Array, draw: np.random.Generator, *, inside: bool) -> tuple[int, ...]:
    """Where the stretch begins and ends that differs most; nothing if one of random order could."""
    import numpy as np

    ranks = _ranks(values)
    permutations = _PERMUTATIONS if len(ranks) <= _LONG else _FEW_PERMUTATIONS
    best, ends = 0.0, (0, 0)
    for start, end, distance in _windows(ranks[np.newaxis, :], inside):
        farthest = int(distance[0].argmax())
        if distance[0, farthest] > best:
            best, ends = float(distance[0, farthest]), (int(start[farthest]), int(end[farthest]))
    as_far = 0 if best > 0 else permutations
    # Most series have no change, and the first few permutations show it.
    for number in (_FIRST, _NEXT, permutations - _FIRST - _NEXT):
        if 1 + as_far > _LEVEL * (1 + permutations):
            return ()
        shuffled = draw.permuted(np.tile(ranks, (number, 1)), axis=1)
        largest = np.zeros(number)
        for _, _, distance in _windows(shuffled, inside):
            np.maximum(largest, distance.max(axis=1), out=largest)
        # Equal ranks give equal distances up to rounding.
        as_far += int((largest >= best * (1 - 1e-9)).sum())
    if 1 + as_far > _LEVEL * (1 + permutations):
        return ()
    return ends if inside else ends[1:]


def _windows(ranks: Array, inside: bool) -> Iterator[tuple[Array, Array, Array]]:
    """For each length of a stretch: where it begins and ends, and how far it is from the rest."""
    import numpy as np

    rows, count = ranks.shape
    sums = np.zeros((rows, count + 1))
    np.cumsum(ranks, axis=1, out=sums[:, 1:])
    if not inside:
        end = np.arange(MIN_RUNS, count - MIN_RUNS + 1)
        yield np.zeros_like(end), end, np.abs(sums[:, end]) / np.sqrt(end * (count - end))
        return
    for length in range(_MIN_INSIDE, count - 2 * MIN_RUNS + 1):
        start = np.arange(MIN_RUNS, count - MIN_RUNS - length + 1)
        distance = np.abs(sums[:, start + length] - sums[:, start])
        yield start, start + length, distance / math.sqrt(length * (count - length))


def _ranks(values: Array) -> Array:
    """Ranks around zero; equal values share theirs."""
    import numpy as np

    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    middle = np.cumsum(counts) - (counts - 1) / 2
    ranks: Array = middle[inverse] - (len(values) + 1) / 2
    return ranks


def _is_large(before: float, after: float) -> bool:
    if before <= 0 or after <= 0:
        return before != after
    return abs(math.log(after / before)) >= math.log1p(MIN_CHANGE_PERCENT / 100)
