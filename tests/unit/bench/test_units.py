"""Times in the unit that shows them."""

from __future__ import annotations

import pytest

from etdeploy.bench.units import duration, long_time, unit_for


@pytest.mark.parametrize(
    ("value_ms", "shown"),
    [
        (0.000041, "41.00 ns"),
        (0.0000999, "99.90 ns"),
        (0.0001, "0.1000 µs"),
        (0.0005, "0.5000 µs"),
        (0.09999, "99.99 µs"),
        (0.1, "0.1000 ms"),
        (1.1, "1.100 ms"),
        (0.0, "0.000 ms"),
        (98765.4, "98,765.4 ms"),
    ],
)
def test_no_time_is_shown_as_zero(value_ms: float, shown: str) -> None:
    assert duration(value_ms) == shown


def test_a_column_has_the_decimals_of_one_value() -> None:
    unit = unit_for(0.0321)
    assert [unit.number(v, like_ms=0.0321) for v in (0.0321, 2.5)] == ["32.10", "2,500.00"]


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.5, "0.5 s"),
        (9.97, "10 s"),
        (95.2, "95 s"),
        (119.7, "2 min"),
        (150.0, "2.5 min"),
        (600.2, "10 min"),
        (7100, "118 min"),
        (9000, "2.5 h"),
    ],
)
def test_long_times_are_in_the_unit_that_people_use(seconds: float, shown: str) -> None:
    assert long_time(seconds) == shown
