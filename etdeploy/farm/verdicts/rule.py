"""How far a night is from those before it, and whether a level has shifted; nothing is read here.

What is assumed: the logarithm of a run's number is its level, plus what the night adds
(temperature, other work, the place of things in memory), plus what the run adds. The repeats of a
night share the night's part, so many of them say little about the next night. A night therefore
counts as one value, the median of its repeats.

`measure_deviation` places one night among those before it. `find_shift` says whether the last
nights, one to fifteen of them, have another level than those before. Of one to three nights, it
asks for a jump that is large beside every earlier night. Of three and more it asks for ranks
(Mann and Whitney's test) that exchangeable nights have in about one series of a thousand, whatever
their distribution: odd nights, heavy tails and two modes make no difference. Nights that resemble
their neighbours are not exchangeable: their autocorrelation, which is estimated over all pairs of a
device, makes the ranks and the mean count for less (as the variance of a mean of a first-order
autoregressive process). `benchmarks/farm_verdicts.py` measures with simulated nights how often this
is wrong; docs/farm.md has its numbers.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, median

from etdeploy.compare.model import Ratio
from etdeploy.compare.statistics import (
    MIN_HISTORY,
    deviation_from_history,
    mad_quantile,
    ratio_from_logs,
    variance_of_median,
)
from etdeploy.history.check import current_level
from etdeploy.history.series import HEADLINES, base_metric

MIN_NIGHTS = MIN_HISTORY
"""Earlier nights that a new one can be judged by."""
# As `etdeploy check` has them: of the first number, and of the others, which are several.
_Z, _Z_OTHERS = 1.96, 3.0
_NORMAL = NormalDist().inv_cdf(0.975)
# Of normal values, the median distance of two is this part of their standard deviation.
_MEDIAN_DISTANCE = NormalDist().inv_cdf(0.75) * math.sqrt(2)
_FEWEST_DISTANCES = 3
_PIECES = 400
_STEPS = 60
_MOST_DEGREES = 1e4

# Of the last nights, as many: how many times the allowed change each of them is away at least, and
# how many times as far as the farthest earlier night.
_JUMPS = ((1, 3.0, 5.0), (2, 2.0, 2.5), (3, 1.0, 2.0))
# Numbers of last nights that ranks are compared of, with the chance that is accepted for each, of
# one series in one night. Of 1,000 series this gives about one false shift in a night.
_RANKED = {3: 5.7e-4, 4: 1.9e-4, 5: 2.9e-4, 7: 1.9e-4, 10: 4.8e-4, 15: 1.9e-4}
# Three nights among 20 have no smaller chance than 1 in 1,771; the mean has to be surer then.
_THREE, _OF_THREE, _MEAN_OF_THREE, _MEAN = 3, 1.2e-3, 3e-4, 1e-3
_FEWEST_BEFORE = 8
# A robust standard deviation by the median absolute one, and where values are cut off.
_ROBUST, _CUT, _CUT_AGAIN = 1.4826, 2.0, 3.0
# A shift is reported unless it is surely smaller than allowed: with so many standard errors.
_SURELY, _SMALLEST = 1.3, 0.5
_FEWEST_SERIES = 10
_MOST_CORRELATED, _NOT_CORRELATED, _OWN_ERRORS, _SHARED = 0.9, 0.1, 1.5, 0.6


@dataclass(frozen=True)
class Deviation:
    """How far a night's value is from the level before it.

    Attributes:
        value: Median of the night's repeats.
        expected: The level: the median over earlier nights.
        ratio: Value by expected, with bounds that contain 1 for 95 of 100 unchanged nights.
        z: In standard deviations between nights, positive where it is larger.
        p_value: The chance that an unchanged night is at least as much larger.
        nights: How many the level rests on.
        count_not_better: How many of these were as bad. If nights are exchangeable, the newest is
            the worst of n with a chance of 1/n, whatever their distribution.
        within: Standard deviation, of the logarithm, between repeats of one night; None with too
            few repeats to tell.
    """

    value: float
    expected: float
    ratio: Ratio
    z: float
    p_value: float
    nights: int
    count_not_better: int
    within: float | None

    def is_worse(self, metric: str, allowed_percent: float) -> bool:
        """Whether the metric would be called worse if it were the only one."""
        allowed = 1 + allowed_percent / 100
        return self.ratio.median > allowed and self.z >= _z_limit(metric)

    def is_better(self, metric: str, allowed_percent: float) -> bool:
        allowed = 1 + allowed_percent / 100
        return self.ratio.median < 1 / allowed and self.z <= -_z_limit(metric)


def measure_deviation(
    values: Sequence[float], nights: Sequence[Sequence[float]]
) -> Deviation | None:
    """Measure how far a night is from earlier ones; None with too few of them."""
    if len(nights) < MIN_NIGHTS:
        return None
    all_levels = [geometric_median(night) for night in nights]
    levels = current_level(all_levels)
    recent = nights[len(nights) - len(levels) :]
    value, expected = geometric_median(values), median(levels)
    within = within_spread([*recent, values])
    own = (within or 0.0) ** 2 * variance_of_median(len(values))
    usual = (within or 0.0) ** 2 * median(variance_of_median(len(night)) for night in recent)
    away = deviation_from_history(value, levels, math.sqrt(own))
    reach = math.log((away.ratio.high or 1.0) / away.ratio.median)
    # With fewer repeats than usual, the runs' part is larger than the nights' values show.
    reach = math.hypot(reach, _NORMAL * math.sqrt(max(0.0, own - usual)))
    apart = math.log(value) - math.log(expected)
    return Deviation(
        value=value,
        expected=expected,
        ratio=ratio_from_logs(apart, apart - reach, apart + reach),
        z=apart / reach * _NORMAL,
        p_value=p_value_of(apart / reach, len(levels), exact=away.spread == 0.0),
        nights=len(levels),
        count_not_better=sum(each >= value for each in levels),
        within=within,
    )


def geometric_median(values: Sequence[float]) -> float:
    """The median; of two values their geometric mean."""
    return math.exp(median(math.log(value) for value in values))


def within_spread(nights: Sequence[Sequence[float]]) -> float | None:
    """Standard deviation of the logarithm between runs of one night, by all pairs of such runs.

    A few odd runs do not matter. None with fewer than three pairs.
    """
    apart = [abs(math.log(a / b)) for night in nights for a, b in itertools.combinations(night, 2)]
    return median(apart) / _MEDIAN_DISTANCE if len(apart) >= _FEWEST_DISTANCES else None


def p_value_of(reaches: float, nights: int, *, exact: bool = False) -> float:
    """The chance that an unchanged night is at least as far above the level.

    The distance in units of a median absolute deviation is distributed nearly as Student's, with
    so many degrees of freedom that both have the same bounds at 95 %.
    """
    if exact:
        return NormalDist().cdf(-reaches * _NORMAL)
    degrees, bound = _student_of(nights)
    return _tail(reaches * bound, degrees)


@functools.cache
def _student_of(nights: int) -> tuple[float, float]:
    """Degrees of freedom that fit the bounds of so many nights, and their quantile at 97.5 %."""
    bound = mad_quantile(nights) / math.sqrt(1 + variance_of_median(nights))
    low, high = 0.5, _MOST_DEGREES
    for _ in range(_STEPS):
        degrees = math.sqrt(low * high)
        low, high = (degrees, high) if _tail(bound, degrees) > 0.025 else (low, degrees)
    return high, bound


def _tail(t: float, degrees: float) -> float:
    """P(T >= t) of Student's distribution with any degrees of freedom.

    With t = sqrt(degrees) * tan(u) the density is a power of a cosine, without an infinite end.
    """
    if t < 0:
        return 1.0 - _tail(-t, degrees)
    start = math.atan(t / math.sqrt(degrees))
    piece = (math.pi / 2 - start) / _PIECES
    heights = (math.cos(start + (i + 0.5) * piece) for i in range(_PIECES))
    total = sum(math.pow(height, degrees - 1) for height in heights)
    scale = math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2) - math.log(math.pi) / 2
    return min(1.0, total * piece * math.exp(scale))


@dataclass(frozen=True)
class Shift:
    """Another level of the last nights.

    Attributes:
        nights: How many they are.
        ratio: Their level by that before.
        chance: That so many nights of an unchanged series have such ranks; None where the jump
            alone is large enough.
    """

    nights: int
    ratio: float
    chance: float | None


def find_shift(
    values: Sequence[float],
    allowed_percent: float,
    *,
    correlated: float = 0.0,
    counts: Sequence[bool] | None = None,
) -> Shift | None:
    """Finds a level of the last nights that is higher than before, by more than is allowed.

    Args:
        values: Of the nights, positive, the earliest first.
        allowed_percent: Changes that are surely smaller are none.
        correlated: Correlation of neighbouring nights, over all pairs of the device.
        counts: Which nights may be compared with; by default all.
    """
    logs = [math.log(value) for value in values]
    usable = counts or [True] * len(logs)

    def parts(nights: int) -> tuple[list[float], list[float]]:
        before = zip(logs[:-nights], usable, strict=False)
        return [value for value, counted in before if counted], logs[-nights:]

    allowed = math.log1p(allowed_percent / 100)
    for nights, times, farther in _JUMPS:
        before, last = parts(nights)
        if len(before) >= MIN_NIGHTS and len(last) == nights:
            level = median(before)
            farthest = max(abs(value - level) for value in before)
            away = min(last) - level
            if away >= max(times * allowed, farther * farthest) and away > 0:
                return Shift(nights, math.exp(median(last) - level), None)
    for nights, accepted in _RANKED.items():
        before, last = parts(nights)
        if len(before) >= _FEWEST_BEFORE and len(last) == nights:
            found = _ranked_shift(before, last, allowed, accepted, correlated)
            if found:
                return found
    return None


def _ranked_shift(
    before: Sequence[float],
    last: Sequence[float],
    allowed: float,
    accepted: float,
    correlated: float,
) -> Shift | None:
    count, many = len(last), len(before)
    larger = sum(value > each for value in last for each in before)
    chance = _rank_chances(count, many)[larger]
    if count == _THREE:
        fewest = 2.05 / math.comb(count + many, count)
        accepted = max(accepted, min(_OF_THREE, fewest))
    if chance > accepted:
        return None
    own = autocorrelation(before)
    surely = own > _OWN_ERRORS / math.sqrt(many)
    shared = _SHARED * correlated if correlated > _NOT_CORRELATED else 0.0
    like = min(max(own if surely else 0.0, shared), _MOST_CORRELATED)
    parts = 1 / count + 1 / many
    inflation = (_inflation(count, like) / count + _inflation(many, like) / many) / parts
    if like > 0:
        z = NormalDist().inv_cdf(1 - min(max(chance, 1e-12), 1 - 1e-12))
        chance = 1 - NormalDist().cdf(z / math.sqrt(inflation))
    cut = _CUT * _ROBUST * _spread_of(before)
    level, now = (_clipped_mean(each, cut) for each in (before, last))
    variance = sum(min(abs(value - level), _CUT_AGAIN / _CUT * cut) ** 2 for value in before)
    error = math.sqrt(variance / (many - 1) * inflation * parts)
    away = now - level
    if chance > accepted or away < _SMALLEST * allowed or away + _SURELY * error < allowed:
        return None
    degrees = max(_THREE, (many - 1) * (1 - like) / (1 + like))
    sure = _MEAN_OF_THREE if count == _THREE else _MEAN
    if error and _tail(away / error, degrees) > sure:
        return None
    return Shift(count, math.exp(away), chance)


def shared_correlation(series: Iterable[Sequence[float]]) -> float:
    """The median correlation of neighbouring nights over series of one device; 0 of too few."""
    found = [autocorrelation(list(map(math.log, each))) for each in series]
    return median(found) if len(found) >= _FEWEST_SERIES else 0.0


def autocorrelation(logs: Sequence[float]) -> float:
    """Correlation of neighbouring nights; that of few values is too small, which is mended."""
    count = len(logs)
    if count < _FEWEST_BEFORE:
        return 0.0
    cut = _CUT * _ROBUST * _spread_of(logs)
    level = _clipped_mean(logs, cut)
    away = [max(-cut * 1.5, min(cut * 1.5, value - level)) for value in logs]
    total = sum(value * value for value in away)
    if not total:
        return 0.0
    found = sum(a * b for a, b in itertools.pairwise(away)) / total
    # The expected value is nearly r - (1 + 3 r) / n (Kendall, 1954).
    return (found * count + 1) / (count - 3)


def _inflation(count: int, correlation: float) -> float:
    """The variance of a mean of so many, by that of independent ones."""
    return 1 + 2 * sum((1 - lag / count) * correlation**lag for lag in range(1, count))


def _spread_of(logs: Sequence[float]) -> float:
    level = median(logs)
    return median(abs(value - level) for value in logs)


def _clipped_mean(logs: Sequence[float], cut: float) -> float:
    level = median(logs)
    return level + fmean(max(-cut, min(cut, value - level)) for value in logs)


@functools.cache
def _rank_chances(count: int, many: int) -> tuple[float, ...]:
    """The chance of at least u pairs of `count` and `many` values where the first is larger.

    By the recursion of Mann and Whitney (1947) over the largest value; equal values count against
    a shift.
    """
    ways = [[0] * (count * many + 1) for _ in range(count + 1)]
    ways[0][0] = 1
    for rank in range(1, count + many + 1):
        for chosen in range(min(rank, count), 0, -1):
            below = rank - chosen
            if below <= many:
                for u in range(count * many, below - 1, -1):
                    ways[chosen][u] += ways[chosen - 1][u - below]
    tails = list(itertools.accumulate(reversed(ways[count])))[::-1]
    return tuple(each / tails[0] for each in tails)


def is_headline_metric(metric: str) -> bool:
    """Whether records are compared by it."""
    return metric in HEADLINES


def _z_limit(metric: str) -> float:
    return _Z if base_metric(metric) == metric and is_headline_metric(metric) else _Z_OTHERS
