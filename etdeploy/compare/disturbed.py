"""Starts whose times count: those that nothing disturbed, or that were disturbed together.

Starts that took turns meet the same other work and the same mode of saving power. A device that
throttles slows down the one of a pair that comes when it is hotter.

Other work delays some inferences, and never makes one faster. On two processors that five processes
used, the medians of starts of one program were 17 to 65 % apart, and the fastest inferences 4 to
6 %. An idle virtual machine shares its cores with others that it cannot see: there it was 8 to 10 %
and 2 %. So the fastest inferences are compared where they agree better.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import stdev

from etdeploy.bench.records import performance as starts
from etdeploy.bench.records.performance import SLOWING, Disturbance, DisturbanceKind, Start
from etdeploy.bench.records.record import RunRecord
from etdeploy.compare.model import Statistic
from etdeploy.compare.statistics import FASTER_HALF_PAIRS

_OF_PAIRS = (DisturbanceKind.THROTTLED,)
# Of fewer starts that met other work, the median over the pairs is spared.
_FEW_BUSY = 0.1
# Medians that agree better find differences of a few percent: they stand for more than the fastest.
_APART = 0.015
# By chance alone, one of two that are as far apart seldom seems to be so much nearer.
_MUCH_NEARER = 2 / 3
# With more left out, those that are left were not disturbed by luck.
_MOST_LEFT_OUT = 0.5


@dataclass(frozen=True)
class UsableTimes:
    """The times that can be compared.

    Attributes:
        a_ms, b_ms: Of the starts, as `statistic` says.
        obstacles: Clauses that say why they cannot be compared.
        remarks: Sentences about what was left out, and what disturbed both.
        statistic: What stands for a start.
        medians_ms: Of the starts of A and of B, where something else stands for them.
    """

    a_ms: tuple[float, ...]
    b_ms: tuple[float, ...]
    obstacles: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    statistic: Statistic = Statistic.MEDIAN
    medians_ms: tuple[tuple[float, ...], tuple[float, ...]] | None = None


def start_medians(record: RunRecord) -> tuple[float, ...]:
    """Median of each start."""
    return tuple(start.median_ms for start in record.workload.runs)


def select_pairs(a: RunRecord, b: RunRecord) -> UsableTimes:
    """The starts of records that took turns, without pairs that were throttled."""
    pairs = list(zip(a.workload.runs, b.workload.runs, strict=True))
    used = [
        i for i, p in enumerate(pairs) if not any(_disturbances(start, _OF_PAIRS) for start in p)
    ]
    causes = [d for p in pairs for start in p for d in _disturbances(start, _OF_PAIRS)]
    causes += [d for record in (a, b) for d in record.disturbances if d.kind in _OF_PAIRS]
    out = len(pairs) - len(used)
    # A disturbance of the whole run that no start names holds for all starts.
    too_many = out > _MOST_LEFT_OUT * len(pairs) or (causes and not out)
    remarks = [f"{out} of {len(pairs)} pairs are left out: {causes[0].text}"] if out else []
    medians = (start_medians(a), start_medians(b))
    usable = UsableTimes(
        tuple(medians[0][i] for i in used),
        tuple(medians[1][i] for i in used),
        (f"throttled: {_clause(causes[0])}",) if too_many else (),
        (*remarks, *_shared(a, b)),
    )
    if not all(map(samples_by_start, (a, b))):
        return usable
    fastest = tuple(tuple(side[i] for i in used) for side in _fastest(a, b))
    return _by_fastest(usable, *fastest, busy=_were_busy(a, b))


def _by_fastest(
    usable: UsableTimes, a_ms: tuple[float, ...], b_ms: tuple[float, ...], *, busy: bool
) -> UsableTimes:
    """With the fastest inferences for the medians, where these say little.

    What decides does not know which start is whose: to take the one that differs more would find
    differences where there are none. Few starts do not show how far they are apart.
    """
    medians = (usable.a_ms, usable.b_ms)
    if not all(0 < time < math.inf for side in (*medians, a_ms, b_ms) for time in side):
        return usable
    if len(a_ms) >= FASTER_HALF_PAIRS:
        apart, nearer = _apart(*medians), _apart(a_ms, b_ms)
        if apart <= _APART or nearer >= _MUCH_NEARER * apart:
            return usable
        why = (
            f"Without the slowest quarter, medians of starts are {100 * apart:.1f} % apart, and "
            f"fastest inferences {100 * nearer:.1f} %: so the fastest inference of each start is "
            "compared."
        )
    elif busy:
        why = "So the fastest inference of each start is compared, which other work delays least."
    else:
        return usable
    remarks = (*usable.remarks, f"{why} What makes only some inferences slower is not seen there.")
    return replace(
        usable,
        a_ms=a_ms,
        b_ms=b_ms,
        remarks=remarks,
        statistic=Statistic.FASTEST,
        medians_ms=medians,
    )


def _apart(*sides: Sequence[float]) -> float:
    """Standard deviation of the logarithms of all starts but the slowest quarter."""
    logs = sorted(math.log(time) for side in sides for time in side)
    return stdev(logs[: 3 * len(logs) // 4])


def _were_busy(a: RunRecord, b: RunRecord) -> bool:
    """Whether other work met so many starts that their medians say little."""
    whole = any(d.kind == DisturbanceKind.BUSY for r in (a, b) for d in r.disturbances)
    starts = [*a.workload.runs, *b.workload.runs]
    met = sum(bool(_disturbances(start, (DisturbanceKind.BUSY,))) for start in starts)
    return whole or met > _FEW_BUSY * len(starts)


def _fastest(a: RunRecord, b: RunRecord) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The fastest inference of each start; of as many on both sides, since more find a faster."""
    pairs = [
        (min(x[: len(y)]), min(y[: len(x)]))
        for x, y in zip(samples_by_start(a), samples_by_start(b), strict=True)
    ]
    return tuple(x for x, _ in pairs), tuple(y for _, y in pairs)


def samples_by_start(record: RunRecord) -> tuple[tuple[float, ...], ...]:
    """The samples of each start; none, where the record has others than its starts say."""
    samples, runs = record.workload.timed.samples, record.workload.runs
    if sum(start.samples for start in runs) != len(samples) or not all(s.samples for s in runs):
        return ()
    return starts.samples_by_start(runs, record.workload.timed)


def select_starts(a: RunRecord, b: RunRecord) -> UsableTimes:
    """The starts of records of different times, without those that were disturbed."""
    both_saved = _saved_power(a) and _saved_power(b)
    # That mode changes all times alike.
    kinds = [k for k in SLOWING if k != DisturbanceKind.POWER_SAVING or not both_saved]
    sides = [_undisturbed(record, kinds) for record in (a, b)]
    obstacles = [
        f"{name} was disturbed: {_clause(causes[0])}"
        for name, (used, causes) in zip("AB", sides, strict=True)
        if not used
    ]
    remarks = [
        f"Starts of {name} are left out: {causes[0].text}"
        for name, (used, causes) in zip("AB", sides, strict=True)
        if used and causes
    ]
    causes = [d.text for d in _all(a) if d.kind == DisturbanceKind.POWER_SAVING][:1]
    remarks += causes if both_saved else []
    return UsableTimes(sides[0][0], sides[1][0], tuple(obstacles), tuple(remarks))


def _undisturbed(
    record: RunRecord, kinds: Collection[DisturbanceKind]
) -> tuple[tuple[float, ...], list[Disturbance]]:
    """Medians of the starts that count, and what disturbed the others; none if most were."""
    runs = record.workload.runs
    causes = [d for start in runs for d in _disturbances(start, kinds)]
    whole = [d for d in record.disturbances if d.kind in kinds]
    if not causes:
        return ((), whole) if whole else (start_medians(record), [])
    used = tuple(start.median_ms for start in runs if not _disturbances(start, kinds))
    return (used if len(runs) - len(used) <= _MOST_LEFT_OUT * len(runs) else ()), causes


def _saved_power(record: RunRecord) -> bool:
    return any(d.kind == DisturbanceKind.POWER_SAVING for d in _all(record))


def _shared(a: RunRecord, b: RunRecord) -> Iterator[str]:
    """Once each, what happened to both or does no harm."""
    seen: dict[DisturbanceKind, Disturbance] = {}
    for disturbance in (*_all(a), *_all(b)):
        if disturbance.kind not in _OF_PAIRS:
            seen.setdefault(disturbance.kind, disturbance)
    for disturbance in seen.values():
        yield disturbance.text


def _all(record: RunRecord) -> Sequence[Disturbance]:
    starts = [d for start in record.workload.runs for d in start.disturbances]
    return [*record.disturbances, *starts]


def _disturbances(start: Start, kinds: Collection[DisturbanceKind]) -> list[Disturbance]:
    return [d for d in start.disturbances if d.kind in kinds]


def _clause(disturbance: Disturbance) -> str:
    """Its sentence, to stand after a colon."""
    text = disturbance.text.rstrip(".")
    return text[:1].lower() + text[1:]
