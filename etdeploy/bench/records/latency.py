"""Times of timed iterations, as a record keeps them."""

from __future__ import annotations

from etdeploy.core.values import Value


class Latency(Value):
    """Times of the timed iterations, in milliseconds.

    Attributes:
        samples: All of them, in the order in which they were measured.
        min: The shortest.
        median: Half of them took no longer.
        mean: Their sum by their number.
        p90: 90 % took no longer, interpolated linearly between samples.
        p99: 99 % took no longer, interpolated in the same way.
        stddev: Standard deviation of the sample, with n - 1; 0 for a single one.
    """

    samples: tuple[float, ...]
    min: float
    median: float
    mean: float
    p90: float
    p99: float
    stddev: float
