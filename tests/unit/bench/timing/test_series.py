"""Starts of the timing pass as the record has them."""

from __future__ import annotations

import pytest

from etdeploy.bench.series import series_of
from tests.support.bench_values import make_pass, make_results, make_series


def test_a_start_has_its_own_statistics_and_samples_stand_start_by_start() -> None:
    series = make_series((1.0, 2.0, 3.0), (5.0,))
    assert series.latency.samples == (1.0, 2.0, 3.0, 5.0)
    first, second = series.starts
    assert (first.samples, first.median_ms, first.mean_ms, first.stddev_ms) == (3, 2.0, 2.0, 1.0)
    assert (second.samples, second.median_ms, second.stddev_ms) == (1, 5.0, 0.0)
    assert first.started_at == "2026-11-21T08:01:00+00:00"


def test_the_spread_between_starts_is_that_of_their_medians() -> None:
    # Medians 10, 11 and 12, whose standard deviation is 1; within them nothing differs.
    spread = make_series((10.0,) * 5, (11.0,) * 5, (12.0,) * 5).spread
    assert spread.within_percent == 0
    assert spread.between_percent == pytest.approx(100 / 11)


def test_one_slow_inference_shows_within_and_not_between() -> None:
    spread = make_series((1.0,) * 9 + (9.0,), (1.0,) * 9 + (5.0,)).spread
    assert spread.within_percent > 100
    assert spread.between_percent == 0


def test_a_single_start_cannot_show_the_spread_between_starts() -> None:
    assert make_series((1.0, 1.1)).spread.between_percent is None


def test_times_below_the_clock_have_no_spread() -> None:
    spread = make_series((0.0,), (0.0,)).spread
    assert (spread.within_percent, spread.between_percent) == (0, 0)


def test_load_and_first_inference_are_medians_over_the_starts() -> None:
    starts = [
        make_results(load_method_ms=load, first_inference_ms=first, verify_ms=0.5)
        for load, first in ((9.5, 30.0), (1.5, 4.0), (2.5, 3.0))
    ]
    series = make_series(*starts)
    assert (series.load_ms, series.first_inference_ms, series.verify_ms) == (3.0, 4.0, 0.5)
    assert make_series(make_results(), starts[0]).verify_ms is None


def test_other_passes_are_no_starts() -> None:
    results = {f"timing.{n}": make_pass(n, make_results((float(n),))) for n in (1, 2)}
    assert [start.median_ms for start in series_of(results, "").starts] == [1.0, 2.0]
    assert series_of(results, "long").passes == ()
