"""Ratios of starts that took turns: how often their intervals are wrong, and what they find."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etdeploy.compare.model import Ratio, Verdict, judge
from etdeploy.compare.statistics import paired_ratio, unpaired_ratio

_TIMES = st.floats(min_value=1e-6, max_value=1e9)


def _starts(draw: random.Random, count: int) -> list[float]:
    """2 % apart, and one in ten 30 % slower."""
    return [math.exp(draw.gauss(0, 0.02)) * draw.choice([1.0] * 9 + [1.3]) for _ in range(count)]


@pytest.mark.parametrize("pairs", [3, 5, 6, 10, 14])
def test_the_same_thing_is_called_different_in_5_percent_of_cases_at_most(pairs: int) -> None:
    draw = random.Random(f"A/A {pairs}")
    series = [
        judge(paired_ratio(_starts(draw, pairs), _starts(draw, pairs)), 0.0) for _ in range(100)
    ]
    # Of 100 with a chance of 5 %, more than 10 are found once in 87 times.
    assert sum(verdict != Verdict.NO_DIFFERENCE for verdict in series) <= 10


def test_a_slow_down_of_5_percent_is_found_with_10_pairs() -> None:
    draw = random.Random("A/B")

    def slower() -> Verdict:
        a, b = ([math.exp(draw.gauss(0, 0.015)) for _ in range(10)] for _ in range(2))
        return judge(paired_ratio(a, [1.05 * x for x in b]))

    found = [slower() for _ in range(100)]
    assert found.count(Verdict.SLOWER) >= 95


def test_what_changes_slowly_drops_out_of_pairs() -> None:
    level = [1.0, 1.1, 1.21, 1.33, 1.46, 1.61, 1.77]
    ratio = paired_ratio(level, [1.05 * x for x in level])
    assert ratio.low == pytest.approx(1.05)
    assert ratio.high == pytest.approx(1.05)


@pytest.mark.parametrize("pairs", [1, 2])
def test_few_pairs_give_a_ratio_without_bounds(pairs: int) -> None:
    assert paired_ratio([1.0] * pairs, [2.0] * pairs) == Ratio(median=2.0, low=None, high=None)


@pytest.mark.parametrize("pairs", [3, 4, 6, 9])
def test_b_by_a_is_the_inverse_of_a_by_b(pairs: int) -> None:
    draw = random.Random(pairs)
    a, b = _starts(draw, pairs), _starts(draw, pairs)
    there, back = paired_ratio(a, b), paired_ratio(b, a)
    assert there.low is not None
    assert there.high is not None
    assert back.median == pytest.approx(1 / there.median)
    assert back.low == pytest.approx(1 / there.high, rel=0.01)
    assert back.high == pytest.approx(1 / there.low, rel=0.01)


def _share_as_far_apart(a: Sequence[float], b: Sequence[float]) -> float:
    """Of all exchanges within pairs; counted without any short cut."""

    def apart(first: Sequence[float], second: Sequence[float]) -> float:
        half = len(first) // 2
        return abs(
            sum(map(math.log, sorted(second)[:half])) - sum(map(math.log, sorted(first)[:half]))
        )

    exchanged = [
        [(y, x) if swap else (x, y) for x, y, swap in zip(a, b, swaps, strict=True)]
        for swaps in product((False, True), repeat=len(a))
    ]
    least = apart(a, b) - 1e-9
    return sum(apart(*zip(*pairs, strict=True)) >= least for pairs in exchanged) / len(exchanged)


def test_a_verdict_is_what_all_exchanges_within_pairs_say() -> None:
    draw = random.Random("exchanges")
    seen = set()
    for _ in range(15):
        a, b = ([math.exp(draw.gauss(0, 0.02)) for _ in range(10)] for _ in range(2))
        b = [1.02 * time for time in b]
        rejected = _share_as_far_apart(a, b) <= 0.05
        assert (judge(paired_ratio(a, b), 0.0) != Verdict.NO_DIFFERENCE) == rejected
        seen.add(rejected)
    assert seen == {True, False}


def test_of_many_pairs_the_slower_half_does_not_count() -> None:
    level = [1.0 + 0.001 * (i % 5) for i in range(10)]
    slower = [1.05 * x * (3 if i in (1, 4, 8) else 1) for i, x in enumerate(level)]
    ratio = paired_ratio(level, slower)
    assert ratio.median == pytest.approx(1.05, rel=0.002)
    assert judge(ratio) == Verdict.SLOWER


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(_TIMES, _TIMES), min_size=3, max_size=12))
def test_the_bounds_are_around_the_ratio(times: Sequence[tuple[float, float]]) -> None:
    a, b = zip(*times, strict=True)
    for ratio in (paired_ratio(a, b), unpaired_ratio(a, b)):
        assert ratio.low is not None
        assert ratio.high is not None
        assert 0 < ratio.low <= ratio.median <= ratio.high < math.inf
