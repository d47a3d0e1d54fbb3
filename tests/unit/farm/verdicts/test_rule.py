"""How far a night is from those before it."""

from __future__ import annotations

import math
import random

import pytest

from etdeploy.farm.verdicts.rule import (
    _rank_chances,
    _tail,
    autocorrelation,
    find_shift,
    geometric_median,
    measure_deviation,
    p_value_of,
    shared_correlation,
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


QUIET = [1.0, 1.01, 0.99, 1.005, 0.995, 1.002, 0.998, 1.0]


def test_a_jump_beyond_every_earlier_night_is_a_shift_at_once() -> None:
    found = find_shift([*QUIET, 1.3], 5.0)
    assert found is not None
    assert (found.nights, found.chance) == (1, None)
    assert found.ratio == pytest.approx(1.3, rel=0.01)
    # Less than three times what is allowed; or one of the earlier nights was nearly as bad.
    assert find_shift([*QUIET, 1.12], 5.0) is None
    assert find_shift([1.25, *QUIET, 1.3], 5.0) is None
    assert find_shift([*QUIET[:4], 1.3], 5.0) is None


def test_a_smaller_jump_needs_more_nights() -> None:
    twice = find_shift([*QUIET, 1.12, 1.12], 5.0)
    assert twice is not None
    assert twice.nights == 2
    assert find_shift([*QUIET, 1.07, 1.07], 5.0) is None
    thrice = find_shift([*QUIET, 1.07, 1.07, 1.07], 5.0)
    assert thrice is not None
    assert thrice.nights == 3


def test_ranks_find_what_is_within_the_range_of_earlier_nights() -> None:
    draw = random.Random(3)
    before = [math.exp(draw.gauss(0, 0.03)) for _ in range(20)]
    last = [math.exp(draw.gauss(math.log(1.1), 0.03)) for _ in range(10)]
    found = find_shift([*before, *last], 5.0)
    assert found is not None
    assert found.chance is not None
    assert found.chance < 1e-3
    assert found.ratio == pytest.approx(1.1, abs=0.03)
    # It is a change of nights that count; those that do not cannot show the level before.
    assert find_shift([*before, *last], 5.0, counts=[False] * 30) is None


def test_the_chance_of_ranks_is_exact() -> None:
    chances = _rank_chances(3, 20)
    assert chances[0] == 1.0
    assert chances[60] == pytest.approx(1 / math.comb(23, 3))
    assert chances[59] == pytest.approx(2 / math.comb(23, 3))


def test_a_shift_that_is_surely_smaller_than_allowed_is_none() -> None:
    draw = random.Random(4)
    values = [math.exp(draw.gauss(0, 0.002)) for _ in range(30)]
    shifted = [*values[:20], *(value * 1.03 for value in values[20:])]
    assert find_shift(shifted, 5.0) is None
    assert find_shift(shifted, 2.0) is not None


def _series(draw: random.Random, kind: str, nights: int) -> list[float]:
    if kind == "two modes":
        logs = [draw.gauss(0.1 * (draw.random() < 0.2), 0.01) for _ in range(nights)]
    elif kind == "heavy tails":
        logs = [0.02 * draw.gauss(0, 1) / math.sqrt(draw.gammavariate(1.5, 2 / 3))
                for _ in range(nights)]  # fmt: skip
    else:
        logs = [draw.gauss(0, 0.03)]
        for _ in range(nights - 1):
            like = 0.8 if kind == "alike" else 0.0
            logs.append(like * logs[-1] + draw.gauss(0, 0.03 * math.sqrt(1 - like * like)))
    return [math.exp(log) for log in logs]


@pytest.mark.parametrize("kind", ["normal", "two modes", "heavy tails", "alike"])
def test_unchanged_nights_hardly_ever_shift(kind: str) -> None:
    """Ten nights of 400 series; one false shift in 1,000 of a night would be four."""
    draw = random.Random(5)
    made = [_series(draw, kind, 30) for _ in range(400)]
    correlated = shared_correlation([series[:20] for series in made])
    assert correlated == pytest.approx(0.8 if kind == "alike" else 0.0, abs=0.15)
    shifted = sum(
        any(find_shift(series[:end], 5.0, correlated=correlated) for end in range(21, 31))
        for series in made
    )
    assert shifted <= 10


def test_few_series_share_no_correlation() -> None:
    assert shared_correlation([[1.0, 1.1] * 10] * 9) == 0.0
    assert shared_correlation([[1.0, 1.1] * 10] * 10) < -0.5
    assert autocorrelation([1.0] * 20) == 0.0
