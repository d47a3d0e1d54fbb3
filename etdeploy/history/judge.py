"""Judges the numbers of a run by those of earlier ones; nothing is read here.

A number regressed if it is worse by more than what is allowed, and farther away than runs in which
nothing changed are from each other: the between-run spread of the earlier runs, robustly estimated
(`etdeploy.compare.statistics.departure`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import median

from etdeploy.compare.model import Ratio
from etdeploy.compare.statistics import BETWEEN_RECORDS, MIN_HISTORY, Departure, departure
from etdeploy.history.changes import steps
from etdeploy.history.entry import Entry
from etdeploy.history.metrics import HEADLINES, shown, title
from etdeploy.history.model import Finding, FindingKind

OUTPUTS = "outputs"
# Of the first number: outside of what 95 of 100 unchanged runs stay in.
_Z = 1.96
# Of each other number. There are several, and each could be far away by chance.
_Z_OTHERS = 3.0
_MIN_SPREAD = 0.002


def findings(
    run: Entry, earlier: Sequence[Entry], max_slowdown_percent: float, against: Entry | None = None
) -> tuple[Finding, ...]:
    """What is found of each number of a run; `outputs_finding` has what is found of its outputs.

    Args:
        run: That is judged.
        earlier: Comparable ones, whose numbers count, the earliest first.
        max_slowdown_percent: How much worse a number may be.
        against: The run to compare with, in place of the earlier ones' median; these then only
            show how far runs are apart.
    """
    found = [
        _judge(metric, value, earlier, max_slowdown_percent, against)
        for metric, value in run.metrics.items()
        if value > 0
    ]
    return tuple(found)


def level(values: Sequence[float]) -> Sequence[float]:
    """Those since the last change of level, where that are enough; else all."""
    found = steps(values)
    since = values[found[-1].index :] if found else values
    return since if len(since) >= MIN_HISTORY else values


def _judge(
    metric: str,
    value: float,
    earlier: Sequence[Entry],
    max_slowdown_percent: float,
    against: Entry | None,
) -> Finding:
    having = [entry for entry in earlier if entry.metrics.get(metric, 0) > 0]
    values = level([entry.metrics[metric] for entry in having])
    if against is not None:
        if against.metrics.get(metric, 0) <= 0:
            return _not_judged(metric, value, "the other run does not have it")
        expected = against.metrics[metric]
        away = _from_one(value, expected, values)
    elif len(values) < MIN_HISTORY:
        why = f"{len(values)} earlier runs have it, and {MIN_HISTORY} are needed"
        return _not_judged(metric, value, why)
    else:
        expected = median(values)
        away = departure(value, values, _of_starts(having) if metric in HEADLINES else 0.0)
    kind = _kind(metric, away, max_slowdown_percent)
    return Finding(
        metric=metric,
        kind=kind,
        value=value,
        expected=expected,
        ratio=away.ratio,
        z=away.z,
        earlier=len(values),
        reason=_reason(metric, kind, value, expected, away, max_slowdown_percent),
    )


def _from_one(value: float, other: float, values: Sequence[float]) -> Departure:
    """Two single values: each is as far from the truth as the history's are."""
    if len(values) >= MIN_HISTORY:
        seen = departure(value, values)
        # Its bounds are around a median of many, these around a single value.
        reach = math.log((seen.ratio.high or 1.0) / seen.ratio.median) * math.sqrt(2)
    else:
        reach = _Z * BETWEEN_RECORDS * math.sqrt(2)
    reach = max(reach, _Z * _MIN_SPREAD)
    away = math.log(value / other)
    ratio = Ratio(median=math.exp(away), low=math.exp(away - reach), high=math.exp(away + reach))
    return Departure(ratio, away / reach * _Z, len(values))


def _of_starts(entries: Sequence[Entry]) -> float:
    """What the spread between starts gives to a run's median, as a logarithm."""
    spreads = [
        entry.spread_percent / 100 / math.sqrt(entry.starts)
        for entry in entries
        if entry.spread_percent is not None
    ]
    return median(spreads) if spreads else 0.0


def _kind(metric: str, away: Departure, max_slowdown_percent: float) -> FindingKind:
    sure = _Z if metric in HEADLINES else _Z_OTHERS
    allowed = 1 + max_slowdown_percent / 100
    if away.ratio.median > allowed and away.z >= sure:
        return FindingKind.REGRESSED
    if away.ratio.median < 1 / allowed and away.z <= -sure:
        return FindingKind.IMPROVED
    return FindingKind.NO_DIFFERENCE


def _reason(
    metric: str,
    kind: FindingKind,
    value: float,
    expected: float,
    away: Departure,
    max_slowdown_percent: float,
) -> str:
    percent = 100 * (away.ratio.median - 1)
    what = f"{shown(metric, value)} instead of {shown(metric, expected)}, {percent:+.1f} %"
    if kind is not FindingKind.NO_DIFFERENCE:
        return f"{what}, {abs(away.z):.1f} standard deviations between runs"
    if abs(percent) <= max_slowdown_percent:
        return what
    return f"{what}: runs in which nothing changed are as far apart"


def outputs_finding(run: Entry, others: Sequence[Entry]) -> Iterator[Finding]:
    """What is found of a run's outputs; nothing where none of the others' were right.

    Args:
        run: That is judged.
        others: Comparable ones, those whose numbers do not count included.
    """
    if run.outputs_ok is None or not any(entry.outputs_ok for entry in others):
        return
    kind = FindingKind.NO_DIFFERENCE if run.outputs_ok else FindingKind.REGRESSED
    reason = "right" if run.outputs_ok else "wrong, and they were right before"
    yield Finding(metric=OUTPUTS, kind=kind, earlier=len(others), reason=reason)


def _not_judged(metric: str, value: float, reason: str) -> Finding:
    return Finding(metric=metric, kind=FindingKind.NOT_JUDGED, value=value, reason=reason)


def sentence(found: Sequence[Finding]) -> str:
    """What regressed, in one sentence."""
    return "; ".join(
        f"{title(finding.metric)} {'are' if finding.metric == OUTPUTS else 'is'} {finding.reason}"
        for finding in found
    )
