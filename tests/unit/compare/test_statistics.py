"""Intervals of ratios: how often they are wrong, what they can say, and what they refuse."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etdeploy.compare.model import Ratio, Verdict
from etdeploy.compare.statistics import departure, log_spread, paired_ratio, unpaired_ratio
from etdeploy.compare.verdict import judge

_TIMES = st.floats(min_value=1e-6, max_value=1e9)


def _starts(draw: random.Random, count: int) -> list[float]:
    """2 % apart, and one in ten 30 % slower."""
    return [math.exp(draw.gauss(0, 0.02)) * draw.choice([1.0] * 9 + [1.3]) for _ in range(count)]


@pytest.mark.parametrize("pairs", [3, 5, 6, 10])
def test_the_same_thing_is_called_different_in_5_percent_of_cases_at_most(pairs: int) -> None:
    draw = random.Random(f"A/A {pairs}")
    series = [
        judge(paired_ratio(_starts(draw, pairs), _starts(draw, pairs)), 0.0) for _ in range(200)
    ]
    # Of 200 with a chance of 5 %, more than 17 are found once in 40 times.
    assert sum(verdict != Verdict.NO_DIFFERENCE for verdict in series) <= 17


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


def test_the_same_values_give_the_same_bounds() -> None:
    a, b = [1.0, 1.1, 0.9, 1.2, 1.0, 1.3], [1.1, 1.0, 1.2, 0.9, 1.3, 1.0]
    assert paired_ratio(a, b) == paired_ratio(a, b)


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


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(_TIMES, _TIMES), min_size=3, max_size=12))
def test_the_bounds_are_around_the_ratio(times: Sequence[tuple[float, float]]) -> None:
    a, b = zip(*times, strict=True)
    for ratio in (paired_ratio(a, b), unpaired_ratio(a, b)):
        assert ratio.low is not None
        assert ratio.high is not None
        assert 0 < ratio.low <= ratio.median <= ratio.high < math.inf


def test_records_of_other_times_need_a_larger_difference_than_pairs() -> None:
    a, b = [1.0, 1.01, 0.99, 1.0, 1.01, 0.99], [1.06, 1.07, 1.05, 1.06, 1.07, 1.05]
    assert judge(paired_ratio(a, b)) == Verdict.SLOWER
    assert judge(unpaired_ratio(a, b)) == Verdict.NO_DIFFERENCE
    assert judge(unpaired_ratio(a, [1.2 * x for x in b])) == Verdict.SLOWER
    assert judge(unpaired_ratio(a, b, between_records=0.005)) == Verdict.SLOWER


def test_one_start_on_each_side_shows_no_spread() -> None:
    alone = unpaired_ratio([1.0], [3.0])
    assert alone.median == pytest.approx(3)
    assert alone.low is alone.high is None
    one_sided = unpaired_ratio([1.0], [3.0, 3.01, 2.99])
    assert one_sided.low is not None
    assert one_sided.low > 2


@pytest.mark.parametrize("call", [paired_ratio, unpaired_ratio])
@pytest.mark.parametrize(
    ("a", "b"),
    [
        ([], []),
        ([1.0], []),
        ([1.0, 0.0], [1.0, 1.0]),
        ([1.0, 1.0], [1.0, -1.0]),
        ([math.nan, 1.0], [1.0, 1.0]),
        ([1.0, 1.0], [math.inf, 1.0]),
    ],
)
def test_what_is_no_time_is_refused(
    call: Callable[..., Ratio], a: list[float], b: list[float]
) -> None:
    with pytest.raises(ValueError):
        call(a, b)


def test_a_start_without_a_partner_is_refused() -> None:
    with pytest.raises(ValueError, match="partner"):
        paired_ratio([1.0, 1.0], [1.0])


@pytest.mark.parametrize("earlier", [5, 8, 20])
def test_a_new_record_departs_from_the_same_in_5_percent_of_cases_at_most(earlier: int) -> None:
    draw = random.Random(f"history {earlier}")

    def departs() -> bool:
        *before, now = (math.exp(draw.gauss(0, 0.03)) for _ in range(earlier + 1))
        return abs(departure(now, before).z) > 1.96

    assert sum(departs() for _ in range(400)) <= 29


def test_an_odd_record_in_the_history_hides_nothing() -> None:
    earlier = [1.0, 1.01, 0.99, 1.005, 5.0, 0.995, 1.0, 1.01, 0.99, 1.0]
    found = departure(1.1, earlier)
    assert found.z > 3
    assert found.ratio.median == pytest.approx(1.1)
    assert found.ratio.low is not None
    assert found.ratio.low > 1.05


def test_records_that_agree_by_chance_are_not_believed() -> None:
    earlier = [1.0] * 6
    assert departure(1.03, earlier).z > 1.96
    assert departure(1.03, earlier, starts=0.02).z < 1.96


def test_a_short_history_judges_nothing() -> None:
    with pytest.raises(ValueError, match="4 earlier values are too few"):
        departure(1.0, [1.0] * 4)


def test_the_spread_of_starts_needs_two() -> None:
    assert log_spread([2.0]) is None
    assert log_spread([1.0, math.e]) == pytest.approx(math.sqrt(0.5))


def test_the_ratio_is_that_of_the_pair_in_the_middle() -> None:
    a, b = [1.0, 2.0, 4.0], [1.1, 2.4, 4.0]
    assert paired_ratio(a, b).median == pytest.approx(median([1.1, 1.2, 1.0]))
