"""Times for people: in the unit that shows them."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class TimeUnit:
    """A unit of time; `per_ms` of them make a millisecond."""

    name: str
    per_ms: float

    def number(self, value_ms: float, like_ms: float | None = None) -> str:
        """A time in this unit, without its name.

        Args:
            value_ms: The time in milliseconds.
            like_ms: The time whose four significant digits decide on the decimals; by default
                the time itself.
        """
        like = (value_ms if like_ms is None else like_ms) * self.per_ms
        return f"{value_ms * self.per_ms:,.{_decimals(like)}f}"


_UNITS = (TimeUnit("ms", 1.0), TimeUnit("µs", 1e3), TimeUnit("ns", 1e6))
# From a tenth of a unit upwards; what is shorter is shown in the next unit.
_LEAST = 0.1
# From so many seconds or minutes upwards, a time is shown in the longer unit.
_LONG = 120


def unit_for(value_ms: float) -> TimeUnit:
    """The largest of ms, µs and ns of which a time has at least a tenth; ms for none at all."""
    if value_ms <= 0:
        return _UNITS[0]
    return next((u for u in _UNITS if value_ms * u.per_ms >= _LEAST), _UNITS[-1])


def duration(value_ms: float) -> str:
    """A time with its unit: `12.35 ms`, `0.6710 µs`, `41.00 ns`."""
    unit = unit_for(value_ms)
    return f"{unit.number(value_ms)} {unit.name}"


def _decimals(value: float) -> int:
    """Digits after the point that show four significant ones, six at most."""
    if value <= 0:
        return 3
    return min(6, max(1, 3 - math.floor(math.log10(value))))


def long_time(seconds: float) -> str:
    """A time of seconds or more, for people: `9.5 s`, `95 s`, `2.5 min`, `10 min`, `1.5 h`."""
    value, name = seconds, "s"
    for longer in ("min", "h"):
        if round(value) >= _LONG:
            value, name = value / 60, longer
    text = f"{value:.0f}" if value >= 10 else f"{value:.1f}".removesuffix(".0")
    return f"{text} {name}"


def rate(per_s: float) -> str:
    """A rate for people, with three significant digits at least: `1,326`, `25.5`."""
    return f"{per_s:,.0f}" if per_s >= 100 else f"{per_s:.3g}"
