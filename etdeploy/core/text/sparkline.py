"""A curve in one line of text."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

_BARS = "▁▂▃▄▅▆▇█"


def sparkline(
    values: Sequence[float], width: int, low: float | None = None, high: float | None = None
) -> str:
    """Bars of eighths, one for each value, or for the mean of several where there are more.

    Args:
        values: From left to right; a value that is not finite is a space.
        width: The most bars.
        low: What the lowest bar stands for; by default the smallest value that is drawn.
        high: What the highest bar stands for; by default the largest value that is drawn.
    """
    drawn = _means(values, width)
    finite = [value for value in drawn if math.isfinite(value)]
    if not finite:
        return " " * len(drawn)
    bottom = min(finite) if low is None else low
    top = max(finite) if high is None else high
    return "".join(_bar(value, bottom, top) for value in drawn)


def _means(values: Sequence[float], width: int) -> list[float]:
    """As many values as there is room for, each the mean of neighbours of about equal number."""
    bars = min(width, len(values))
    edges = [i * len(values) // bars for i in range(bars + 1)] if bars > 0 else [0]
    parts = (values[a:b] for a, b in itertools.pairwise(edges))
    return [math.fsum(part) / len(part) for part in parts]


def _bar(value: float, bottom: float, top: float) -> str:
    if not math.isfinite(value):
        return " "
    # Equal values are a line in the middle: they are neither low nor high.
    share = (value - bottom) / (top - bottom) if top > bottom else 0.5
    return _BARS[max(0, min(len(_BARS) - 1, int(share * len(_BARS))))]
