"""A metric of a series over time; nothing is read here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from etdeploy.history.changes import MIN_RUNS, Step, steps
from etdeploy.history.entry import Entry, Judgement
from etdeploy.history.model import Change, Point, Trend
from etdeploy.history.series import Series

# Of normal values, the median absolute deviation is this part of the standard deviation.
_MAD_TO_STDDEV = 1.4826
_SHORT = 10


def trend_of(series: Series, entries: Sequence[Entry], metric: str, runs: int) -> Trend:
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


def differing(before: Entry, after: Entry) -> tuple[str, ...]:
    """What else differs between two runs of a series, as a reader looks for the cause."""
    return tuple(_differing(before, after))


def _differing(before: Entry, after: Entry) -> Iterator[str]:
    if before.git_revision != after.git_revision or after.git_dirty:
        yield f"recipe {_revision(before)} -> {_revision(after)}"
    for name in sorted({*before.versions, *after.versions}):
        old, new = before.versions.get(name), after.versions.get(name)
        if old != new:
            yield f"{name} {old or 'none'} -> {new or 'none'}"
    if before.program != after.program:
        yield "another program"


def _revision(entry: Entry) -> str:
    changed = " with changes" if entry.git_dirty else ""
    return (entry.git_revision or "outside a repository")[:_SHORT] + changed


def _point(entry: Entry, metric: str) -> Point:
    remark = entry.disturbed or ("" if entry.outputs_ok is not False else "wrong outputs")
    return Point(
        run_id=entry.run_id,
        started_at=entry.started_at,
        value=entry.metrics.get(metric),
        spread_percent=entry.spread_percent,
        used=entry.fit and metric in entry.metrics,
        remark=remark or ("checked: regressed" if _regressed(entry) else ""),
        git_revision=entry.git_revision,
        judgement=entry.judgement,
    )


def _regressed(entry: Entry) -> bool:
    return entry.judgement is Judgement.REGRESSED


def _change(used: Sequence[Entry], step: Step) -> Change:
    first = used[step.index]
    return Change(
        run_id=first.run_id,
        started_at=first.started_at,
        before=step.before,
        after=step.after,
        ratio=step.after / step.before if step.before else 1.0,
        differs=differing(used[step.index - 1], first),
    )
