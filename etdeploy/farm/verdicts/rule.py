"""How far a night is from those before it, and whether that is chance; nothing is read here.

What is assumed: the logarithm of a run's number is its level, plus what the night adds
(temperature, other work, the place of things in memory), plus what the run adds. The repeats of a
night share the night's part, so many of them say little about the next night. A night therefore
counts as one value, the median of its repeats, and is judged by the spread between the nights'
values. That contains the night's part once, and the runs' part divided by the number of repeats.

Nights are taken to be independent of each other, and normally distributed but for a few odd ones:
level and spread are a median and a median absolute deviation. `benchmarks/farm_verdicts.py`
measures with simulated nights how often the verdicts are wrong; docs/farm.md has its numbers.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
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
    apart = [abs(math.log(a / b)) for night in nights for a, b in combinations(night, 2)]
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


def p_value_of_mean(nights: Sequence[Deviation]) -> float:
    """The chance that the mean of several unchanged nights is as far above the level.

    The product of their chances would be too small: they are judged by the same level and spread,
    and where these are too low by chance, all are far above.
    """
    count = min(each.nights for each in nights)
    of_level = variance_of_median(count)
    narrower = math.sqrt((1 / len(nights) + of_level) / (1 + of_level))
    reach = max(math.log((each.ratio.high or 1.0) / each.ratio.median) for each in nights)
    away = fmean(math.log(each.ratio.median) for each in nights)
    return p_value_of(away / (reach * narrower), count)


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


def is_headline_metric(metric: str) -> bool:
    """Whether records are compared by it."""
    return metric in HEADLINES


def _z_limit(metric: str) -> float:
    return _Z if base_metric(metric) == metric and is_headline_metric(metric) else _Z_OTHERS
