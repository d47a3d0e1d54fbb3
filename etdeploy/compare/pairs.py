"""How many times as long B takes as A, from starts that took turns.

Other work, a neighbour on a virtual machine's host or slow cores make some starts slower, and none
faster. So the faster half of each side's starts is compared, where there are enough pairs.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from itertools import product
from statistics import NormalDist, fmean, median, stdev

from etdeploy.bench.statistics import percentile
from etdeploy.compare.model import Ratio
from etdeploy.compare.statistics import LEAST_SPREAD, ratio, require_times, student

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
        ValueError: There is no pair, a start has no partner, or a time is not a positive number.
    """
    if len(a_ms) != len(b_ms):
        raise ValueError("a start has no partner")
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
    return ratio(center, min(low, center), max(high, center))


def _by_exchanges(a: Sequence[float], b: Sequence[float]) -> Ratio:
    center = _faster_half(b) - _faster_half(a)
    exchanges = _exchanges(len(a))

    def rejects(shift: float) -> bool:
        return _rejects(a, [x - shift for x in b], exchanges)

    # No start of one side is further from one of the other than that.
    furthest = max(max(a) - min(b), max(b) - min(a), 0.0) + LEAST_SPREAD
    low, high = (_bound(rejects, center, end) for end in (-furthest, furthest))
    return ratio(center, low, high)


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
    wider = math.sqrt(count / (count - 1)) * student(count - 1)
    tail = 100 * NormalDist().cdf(-wider)
    return percentile(medians, tail), percentile(medians, 100 - tail)


def _student_around_mean(values: Sequence[float]) -> tuple[float, float]:
    error = max(stdev(values), LEAST_SPREAD) / math.sqrt(len(values))
    reach = student(len(values) - 1) * error
    return fmean(values) - reach, fmean(values) + reach
