"""How many times as long B takes as A, and between which bounds, in plain Python.

What varies is the start: its iterations agree better with each other than with those of the next
start, so each start counts as one value. Here are starts that were measured at different times;
`pairs` has those that took turns. `benchmarks/ab.py` measures with simulated starts how often these
intervals are wrong, and `docs/comparing.md` gives the numbers.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import NormalDist, fmean, median, stdev

from etdeploy.bench.statistics import percentile
from etdeploy.compare.model import Ratio

MIN_HISTORY = 5
"""Earlier records that a new one can be judged by."""
BETWEEN_RECORDS = 0.03
"""Standard deviation, of the logarithm, that is taken for granted between records of the same
thing that were measured at different times: temperature, other work and the place of a process in
memory and on cores differ then, and no record shows it. On a device that is kept cool and quiet, 1
to 5 % are usual."""

LEAST_SPREAD = 0.002
"""Clocks and counters agree no better, as a standard deviation of the logarithm."""

_CONFIDENCE = 0.95
_NORMAL = NormalDist().inv_cdf(1 - (1 - _CONFIDENCE) / 2)
# Quantiles of Student's distribution, 97.5 %, for 1, 2, ... degrees of freedom.
_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
# |new value - median| / (1.4826 * MAD) of n normal values is below this in 95 % of all cases, for
# n = 3, 4, ...; simulated with 400,000 series each. The MAD of few values is often far too small.
_MAD_QUANTILES = (21.7, 6.54, 5.97, 4.22, 4.03, 3.43, 3.34, 3.03)
_MAD_TO_STDDEV = 1.4826
# A median of n values varies this much more than their mean: sqrt(pi / 2), from three values on.
_MEDIAN_VARIANCE = math.pi / 2
_LARGEST_LOG = 700.0


def unpaired_ratio(
    a_ms: Sequence[float], b_ms: Sequence[float], between_records: float = BETWEEN_RECORDS
) -> Ratio:
    """The ratio of the medians of starts that were measured at different times.

    The starts show how far the starts of one record are apart, not how far records are: the
    interval includes that too. Where one side has a single start, it is taken to vary like the
    other's.
    """
    require_times(a_ms)
    require_times(b_ms)
    sides = [[math.log(time) for time in side] for side in (a_ms, b_ms)]
    center = median(sides[1]) - median(sides[0])
    degrees = sum(len(side) - 1 for side in sides)
    if degrees == 0:
        return Ratio(median=math.exp(center), low=None, high=None)
    squares = sum((len(side) - 1) * stdev(side) ** 2 for side in sides if len(side) > 1)
    starts = max(math.sqrt(squares / degrees), LEAST_SPREAD)
    of_medians = starts**2 * sum(variance_of_median(len(side)) for side in sides)
    error = math.sqrt(of_medians + 2 * max(starts, between_records) ** 2)
    reach = student_quantile(degrees) * error
    return ratio_from_logs(center, center - reach, center + reach)


@dataclass(frozen=True)
class HistoryDeviation:
    """How far a new value is from earlier ones.

    Attributes:
        ratio: The new value by the median of the earlier ones, between bounds that contain 1 for
            95 of 100 records in which nothing changed.
        z: The distance in standard deviations, positive where the new value is larger. The standard
            deviation is robust: a few odd values among the earlier ones do not matter.
        earlier: How many there are.
        spread: That standard deviation, of the logarithm; 0 where more than half of the earlier
            values are equal.
    """

    ratio: Ratio
    z: float
    earlier: int
    spread: float = 0.0


def deviation_from_history(
    value_ms: float, earlier_ms: Sequence[float], starts: float = 0.0
) -> HistoryDeviation:
    """Judges a new value by earlier ones that were measured at other times.

    Args:
        value_ms: Of the new record.
        earlier_ms: Of at least `MIN_HISTORY` comparable records.
        starts: Standard deviation, of the logarithm, that the spread between starts gives to one
            record's value. Earlier values that agree better agree by chance.

    Raises:
        ValueError: There are fewer, or a time is not a positive number.
    """
    require_times([value_ms])
    require_times(earlier_ms)
    count = len(earlier_ms)
    if count < MIN_HISTORY:
        raise ValueError(f"{count} earlier values are too few")
    logs = [math.log(time) for time in earlier_ms]
    center = median(logs)
    seen = _MAD_TO_STDDEV * median(abs(x - center) for x in logs)
    floor = max(starts, LEAST_SPREAD)
    error_of_floor = floor * math.sqrt(1 + variance_of_median(count))
    reach = max(mad_quantile(count) * seen, _NORMAL * error_of_floor)
    away = math.log(value_ms) - center
    # In units in which the bounds are where those of a normal distribution are.
    z = away / reach * _NORMAL
    return HistoryDeviation(ratio_from_logs(away, away - reach, away + reach), z, count, seen)


def student_quantile(degrees: int) -> float:
    """Quantile of Student's distribution at 97.5 %, to 0.1 %, for 1, 2, ... degrees of freedom.

    Above the table, the expansion of Abramowitz and Stegun, 26.7.5, to its second term.
    """
    if degrees <= len(_STUDENT):
        return _STUDENT[degrees - 1]
    z = _NORMAL
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    return z + first / degrees + second / degrees**2


def mad_quantile(count: int) -> float:
    """What a new normal value's distance from the median of `count` others, in units of 1.4826
    times their MAD, stays below in 95 % of all cases. `count` is at least 3.
    """
    if count < 3 + len(_MAD_QUANTILES):
        return _MAD_QUANTILES[count - 3]
    # Fits the simulated 2.81 (12), 2.66 (15), 2.42 (20), 2.26 (30) and 2.13 (50) from above.
    return _NORMAL + 10.5 / count


def variance_of_median(count: int) -> float:
    """Variance of a median of `count` normal values of variance 1."""
    return (_MEDIAN_VARIANCE if count > 2 else 1.0) / count


def ratio_from_logs(center: float, low: float, high: float) -> Ratio:
    """The ratio with its bounds, from their logarithms."""
    # The bounds of a few values that are far apart may be beyond what a float can be.
    values = [math.exp(max(-_LARGEST_LOG, min(x, _LARGEST_LOG))) for x in (center, low, high)]
    return Ratio(median=values[0], low=values[1], high=values[2])


def require_times(times_ms: Sequence[float]) -> None:
    """Raises ValueError unless there are times, all positive and finite."""
    if not times_ms or not all(0 < time < math.inf for time in times_ms):
        raise ValueError("times have to be positive numbers")


MIN_PAIRS = 3
"""With fewer pairs no interval is stated: two that agree by chance would prove anything."""
FASTER_HALF_PAIRS = 10
"""From this number on, the faster halves are compared. With fewer pairs, a device that becomes
warmer with every start hides a difference of 5 % in them, which the pairs' ratios show."""

# Below this number, the range of the values themselves, which no bootstrap leaves, contains their
# true median less than 95 % of the time: 1 - 2^(1 - n).
_BOOTSTRAP_PAIRS = 6
_RESAMPLES = 2000
_SEED = 1
_ALPHA = 0.05
# All exchanges of 10 pairs are 1024. Of each and its opposite, one is looked at.
_EXCHANGES = 512
# Bounds are found to this precision, of a logarithm.
_PRECISION = 0.0002
_ROUNDING = 1e-12


def paired_ratio(a_ms: Sequence[float], b_ms: Sequence[float]) -> Ratio:
    """The ratio of starts that took turns.

    With 10 pairs or more, it is the ratio of the geometric means of the faster half of each side's
    starts. Its interval has the ratios that a permutation test does not reject: if B took exactly
    that many times as long, A and B of each pair could change places. The test is exact, whatever
    the times' distribution is (Good, "Permutation, Parametric, and Bootstrap Tests of Hypotheses",
    2005).

    With fewer, it is the median of the pairs' ratios. From 6 pairs on, the interval is the
    bootstrap's, with percentiles expanded for small samples as in Hesterberg, "What Teachers Should
    Know About the Bootstrap" (2014): plain ones are too narrow. With 3 to 5 pairs it is Student's,
    of the logarithms.

    Args:
        a_ms: What stands for each start of A.
        b_ms: The same of B; each start belongs to the one of A at its position.

    Raises:
        ValueError: There is no pair, the sides have unequal numbers of starts, or a time is not
            a positive number.
    """
    if len(a_ms) != len(b_ms):
        raise ValueError("the two sides have unequal numbers of starts")
    require_times(a_ms)
    require_times(b_ms)
    a, b = ([math.log(time) for time in side] for side in (a_ms, b_ms))
    if len(a) >= FASTER_HALF_PAIRS:
        return _by_exchanges(a, b)
    apart = [y - x for x, y in zip(a, b, strict=True)]
    center = median(apart)
    if len(apart) < MIN_PAIRS:
        return Ratio(median=math.exp(center), low=None, high=None)
    low, high = (_bootstrap if len(apart) >= _BOOTSTRAP_PAIRS else _student_around_mean)(apart)
    # The mean of a few values, the middle of Student's interval, may be far from their median.
    return ratio_from_logs(center, min(low, center), max(high, center))


def _by_exchanges(a: Sequence[float], b: Sequence[float]) -> Ratio:
    center = _faster_half(b) - _faster_half(a)
    exchanges = _exchanges(len(a))

    def rejects(shift: float) -> bool:
        return _rejects(a, [x - shift for x in b], exchanges)

    # No start of one side is further from one of the other than that.
    furthest = max(max(a) - min(b), max(b) - min(a), 0.0) + LEAST_SPREAD
    low, high = (_bound(rejects, center, end) for end in (-furthest, furthest))
    return ratio_from_logs(center, low, high)


def _bound(rejects: Callable[[float], bool], center: float, end: float) -> float:
    """Where the test begins to reject, on the way from the center to the end.

    Zero is tried first: the verdict is about it, and must not depend on how a bound is rounded.
    """
    inside, outside = center, end
    if min(center, end) < 0 < max(center, end):
        inside, outside = (inside, 0.0) if rejects(0.0) else (0.0, outside)
    while abs(outside - inside) > _PRECISION:
        middle = (inside + outside) / 2
        inside, outside = (inside, middle) if rejects(middle) else (middle, outside)
    return (inside + outside) / 2


def _rejects(a: Sequence[float], b: Sequence[float], exchanges: Sequence[Sequence[bool]]) -> bool:
    """Whether few exchanges of A and B within pairs set their faster halves as far apart."""
    pairs = list(zip(a, b, strict=True))
    half, found, allowed = len(pairs) // 2, 0, _ALPHA * len(exchanges)
    least = abs(sum(sorted(b)[:half]) - sum(sorted(a)[:half])) - _ROUNDING
    for exchange in exchanges:
        first, second = [], []
        for (x, y), exchanged in zip(pairs, exchange, strict=True):
            first.append(y if exchanged else x)
            second.append(x if exchanged else y)
        found += abs(sum(sorted(second)[:half]) - sum(sorted(first)[:half])) >= least
        if found > allowed:
            return False
    return True


def _exchanges(pairs: int) -> list[tuple[bool, ...]]:
    """All of them, or as many drawn by lot; the one that exchanges nothing is the first.

    The first pair stays: to exchange all others instead gives the same distance.
    """
    if 2 ** (pairs - 1) <= _EXCHANGES:
        return [(False, *others) for others in product((False, True), repeat=pairs - 1)]
    draw = random.Random(_SEED)  # noqa: S311 - no secret
    drawn = [tuple(draw.random() < 0.5 for _ in range(pairs)) for _ in range(_EXCHANGES - 1)]
    return [(False,) * pairs, *drawn]


def _faster_half(logs: Sequence[float]) -> float:
    return fmean(sorted(logs)[: len(logs) // 2])


def _bootstrap(values: Sequence[float]) -> tuple[float, float]:
    """Bounds of the median, always the same for the same values."""
    count = len(values)
    draw = random.Random(_SEED)  # noqa: S311 - no secret
    medians = [median(draw.choices(values, k=count)) for _ in range(_RESAMPLES)]
    wider = math.sqrt(count / (count - 1)) * student_quantile(count - 1)
    tail = 100 * NormalDist().cdf(-wider)
    return percentile(medians, tail), percentile(medians, 100 - tail)


def _student_around_mean(values: Sequence[float]) -> tuple[float, float]:
    error = max(stdev(values), LEAST_SPREAD) / math.sqrt(len(values))
    reach = student_quantile(len(values) - 1) * error
    return fmean(values) - reach, fmean(values) + reach
