"""Intervals of ratios: how often they are wrong, what they can say, and what they refuse."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from statistics import median

import pytest

from etdeploy.compare.model import Ratio, Verdict, judge
from etdeploy.compare.statistics import deviation_from_history, paired_ratio, unpaired_ratio


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


@pytest.mark.parametrize("earlier", [5, 8, 20])
def test_a_new_record_departs_from_the_same_in_5_percent_of_cases_at_most(earlier: int) -> None:
    draw = random.Random(f"history {earlier}")

    def departs() -> bool:
        *before, now = (math.exp(draw.gauss(0, 0.03)) for _ in range(earlier + 1))
        return abs(deviation_from_history(now, before).z) > 1.96

    assert sum(departs() for _ in range(400)) <= 29


def test_an_odd_record_in_the_history_hides_nothing() -> None:
    earlier = [1.0, 1.01, 0.99, 1.005, 5.0, 0.995, 1.0, 1.01, 0.99, 1.0]
    found = deviation_from_history(1.1, earlier)
    assert found.z > 3
    assert found.ratio.median == pytest.approx(1.1)
    assert found.ratio.low is not None
    assert found.ratio.low > 1.05


def test_a_short_history_judges_nothing() -> None:
    with pytest.raises(ValueError, match="4 earlier values"):
        deviation_from_history(1.0, [1.0] * 4)


def test_the_ratio_is_that_of_the_pair_in_the_middle() -> None:
    a, b = [1.0, 2.0, 4.0], [1.1, 2.4, 4.0]
    assert paired_ratio(a, b).median == pytest.approx(median([1.1, 1.2, 1.0]))
