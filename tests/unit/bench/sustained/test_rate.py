"""Rates and drops of curves that were made for it."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from etdeploy.bench.sustained_rate import (
    Stretch,
    drop_s,
    end_rate,
    rate,
    start_rate,
    stretches_of,
)


def _curve(per_s: Callable[[float], float], count: int = 100, each_s: float = 6.0) -> list[Stretch]:
    """A pass of stretches whose rate follows a function of the time in seconds."""
    return [
        Stretch(i * each_s, (i + 1) * each_s, round(each_s * per_s((i + 0.5) * each_s)))
        for i in range(count)
    ]


def test_stretches_follow_each_other() -> None:
    assert stretches_of([(1.5, 3), (2.5, 4)]) == (Stretch(0.0, 1.5, 3), Stretch(1.5, 2.5, 4))


def test_a_rate_is_of_whole_stretches() -> None:
    assert rate([Stretch(0, 1, 10), Stretch(1, 4, 15)]) == 25 / 4
    assert rate([Stretch(0, 0, 1)]) == 0


def test_a_steady_rate_never_drops() -> None:
    noise = random.Random(1)
    steady = _curve(lambda _: noise.gauss(100, 3))
    assert start_rate(steady) == pytest.approx(100, rel=0.05)
    assert end_rate(steady) == pytest.approx(100, rel=0.03)
    assert drop_s(steady, 0.1) is None


def test_a_step_is_found_where_it_is() -> None:
    noise = random.Random(2)
    throttled = _curve(lambda s: noise.gauss(100 if s < 95 else 62, 2))
    assert end_rate(throttled) / start_rate(throttled) == pytest.approx(0.62, abs=0.04)
    assert drop_s(throttled, 0.1) == pytest.approx(95, abs=7)
    assert drop_s(throttled, 0.25) == pytest.approx(95, abs=7)


def test_a_slow_decline_passes_one_limit_after_the_other() -> None:
    declining = _curve(lambda s: 1000 * (1 - 0.4 * s / 600))
    assert drop_s(declining, 0.1) == pytest.approx(150, abs=20)
    assert drop_s(declining, 0.25) == pytest.approx(375, abs=20)


def test_a_dip_that_recovers_is_no_drop() -> None:
    assert drop_s(_curve(lambda s: 50 if 200 < s < 230 else 100), 0.1) is None


def test_a_dip_before_the_drop_is_not_taken_for_it() -> None:
    curve = _curve(lambda s: 50 if 60 < s < 90 or s > 300 else 100)
    assert drop_s(curve, 0.25) == pytest.approx(300, abs=7)


def test_a_governor_that_swings_counts_by_its_mean() -> None:
    swinging = _curve(lambda s: 100 if s < 120 or math.sin(s / 4) > 0 else 60)
    assert end_rate(swinging) == pytest.approx(80, abs=8)
    assert drop_s(swinging, 0.1) == pytest.approx(120, abs=20)
    assert drop_s(swinging, 0.25) is None


def test_a_drop_at_once_is_found() -> None:
    assert drop_s(_curve(lambda s: 100 if s < 18 else 70), 0.1) == 24


def test_one_slow_stretch_at_the_start_does_not_change_the_start() -> None:
    assert start_rate(_curve(lambda s: 40 if 6 < s < 12 else 100)) == 100


@pytest.mark.parametrize("count", range(1, 12))
def test_few_stretches_have_a_rate_and_no_drop(count: int) -> None:
    few = _curve(lambda _: 2.0, count, 0.5)
    assert (start_rate(few), end_rate(few)) == (2.0, 2.0)
    assert drop_s(few, 0.1) is None


@pytest.mark.parametrize("count", [10, 20, 100])
def test_one_slow_stretch_at_the_end_is_no_drop(count: int) -> None:
    end_s = 6.0 * (count - 1)
    assert drop_s(_curve(lambda s: 50 if s > end_s else 100, count), 0.1) is None
