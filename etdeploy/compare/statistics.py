"""How many times as long B takes as A, and between which bounds, in plain Python.

What varies is the start: its iterations agree better with each other than with those of the next
start, so each start counts as one value. Here are starts that were measured at different times;
`pairs` has those that took turns. `benchmarks/ab.py` measures with simulated starts how often these
intervals are wrong, and `docs/comparing.md` gives the numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, median, stdev

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

    Args:
        a_ms: Median of each start of A.
        b_ms: The same of B.
        between_records: Standard deviation of the logarithm between records of the same thing; at
            least that between starts is used.

    Raises:
        ValueError: A side has no start, or a time is not a positive number.
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
    reach = student(degrees) * error
    return ratio(center, center - reach, center + reach)


@dataclass(frozen=True)
class Departure:
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


def departure(value_ms: float, earlier_ms: Sequence[float], starts: float = 0.0) -> Departure:
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
    return Departure(ratio(away, away - reach, away + reach), z, count, seen)


def log_spread(times_ms: Sequence[float]) -> float | None:
    """Standard deviation of the logarithms; None for a single time.

    Raises:
        ValueError: A time is not a positive number.
    """
    require_times(times_ms)
    return stdev(math.log(time) for time in times_ms) if len(times_ms) > 1 else None


def student(degrees: int) -> float:
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


def ratio(center: float, low: float, high: float) -> Ratio:
    """The ratio with its bounds, from their logarithms."""
    # The bounds of a few values that are far apart may be beyond what a float can be.
    values = [math.exp(max(-_LARGEST_LOG, min(x, _LARGEST_LOG))) for x in (center, low, high)]
    return Ratio(median=values[0], low=values[1], high=values[2])


def require_times(times_ms: Sequence[float]) -> None:
    """
    Raises:
        ValueError: There is none, or one is not a positive number.
    """
    if not times_ms or not all(0 < time < math.inf for time in times_ms):
        raise ValueError("times have to be positive numbers")
