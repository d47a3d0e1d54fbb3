"""How far a night is from those before it."""

from __future__ import annotations

import math
import random

import pytest

from etdeploy.farm.verdicts.night import benjamini_hochberg
from etdeploy.farm.verdicts.rule import (
    _tail,
    geometric_median,
    measure_deviation,
    p_value_of,
    within_spread,
)

METRIC = "latency_ms"


def nights(count: int, between: float, within: float) -> list[list[float]]:
    draw = random.Random(1)
    found = []
    for _ in range(count):
        shared = draw.gauss(0, between)
        found.append([math.exp(shared + draw.gauss(0, within)) for _ in range(3)])
    return found


def test_too_few_nights_say_nothing() -> None:
    assert measure_deviation([1.0], nights(4, 0.01, 0.01)) is None
    assert measure_deviation([1.0], nights(5, 0.01, 0.01)) is not None


def test_many_repeats_of_one_night_are_one_value() -> None:
    """The night's own part does not become smaller by more repeats."""
    before = nights(20, 0.05, 0.001)
    away = measure_deviation([1.08] * 50, before)
    assert away is not None
    assert not away.is_worse(METRIC, 5.0)
    assert away.nights == 20


def test_one_repeat_is_less_sure_than_three() -> None:
    before = nights(20, 0.0, 0.03)
    one, three = measure_deviation([1.06], before), measure_deviation([1.06] * 3, before)
    assert one is not None
    assert three is not None
    assert one.z < three.z


def test_an_odd_night_that_was_there_before_is_counted() -> None:
    before = [*nights(19, 0.01, 0.01), [1.2, 1.2, 1.2]]
    away = measure_deviation([1.15, 1.15, 1.15], before)
    assert away is not None
    assert away.is_worse(METRIC, 5.0)
    assert away.count_not_better == 1


def test_the_spread_within_a_night_is_that_of_pairs() -> None:
    spread = within_spread(nights(400, 0.2, 0.03))
    assert spread == pytest.approx(0.03, rel=0.1)
    assert within_spread([[1.0], [2.0], [3.0]]) is None
    assert geometric_median([1.0, 4.0]) == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("t", "degrees", "expected"),
    [(2.228, 10, 0.025), (12.706, 1, 0.025), (6.869, 4, 0.00118), (-2.228, 10, 0.975)],
)
def test_the_tail_is_students(t: float, degrees: float, expected: float) -> None:
    assert _tail(t, degrees) == pytest.approx(expected, rel=0.02)


def test_the_bound_of_95_percent_has_the_same_chance_for_every_number_of_nights() -> None:
    for count in (5, 8, 20, 50):
        assert p_value_of(1.0, count) == pytest.approx(0.025, rel=0.01)
    assert p_value_of(1.0, 5, exact=True) == pytest.approx(0.025, rel=0.01)
    assert p_value_of(3.0, 5) > p_value_of(3.0, 20)


def test_one_of_many_needs_more_than_one_alone() -> None:
    assert benjamini_hochberg([0.02], 0.05) == [True]
    assert benjamini_hochberg([0.02, *[0.5] * 199], 0.05) == [False] * 200
    together = benjamini_hochberg([0.002] * 10 + [0.5] * 190, 0.05)
    assert together == [True] * 10 + [False] * 190
    assert benjamini_hochberg([]) == []
