"""Statistics of timed samples, in plain Python."""

from __future__ import annotations

import math
from collections.abc import Sequence

from etdeploy.bench.records.performance import Latency


def summarize(samples_ms: Sequence[float]) -> Latency:
    """Statistics of the samples, which are kept in the order in which they were measured."""
    if not samples_ms:
        raise ValueError("there are no samples")
    return Latency(
        samples=tuple(samples_ms),
        min=min(samples_ms),
        median=percentile(samples_ms, 50),
        mean=math.fsum(samples_ms) / len(samples_ms),
        p90=percentile(samples_ms, 90),
        p99=percentile(samples_ms, 99),
        stddev=sample_stddev(samples_ms),
    )


def percentile(values: Sequence[float], percent: float) -> float:
    """The value below which `percent` of the values lie, interpolated linearly.

    Type 7 of Hyndman and Fan, "Sample Quantiles in Statistical Packages" (1996), the default of
    numpy and R: of n sorted values x[0..n-1] the one at the rank (n - 1) * percent / 100.

    Raises:
        ValueError: There is no value, or `percent` is not from 0 to 100.
    """
    if not values or not 0 <= percent <= 100:
        raise ValueError("a percentile needs values, and a percentage from 0 to 100")
    ordered = sorted(values)
    rank = (len(ordered) - 1) * percent / 100
    below = math.floor(rank)
    above = math.ceil(rank)
    return ordered[below] + (rank - below) * (ordered[above] - ordered[below])


def sample_stddev(values: Sequence[float]) -> float:
    """Standard deviation of a sample, sqrt(sum((x - mean)^2) / (n - 1)); 0 for a single value."""
    if not values:
        raise ValueError("there are no values")
    if len(values) == 1:
        return 0.0
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((x - mean) ** 2 for x in values) / (len(values) - 1))
