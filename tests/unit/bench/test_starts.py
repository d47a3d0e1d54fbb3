"""Starts of the timing pass as the record has them, with their statistics."""

from __future__ import annotations

import statistics

import pytest

from etdeploy.bench.statistics import percentile, sample_stddev, summarize
from etdeploy.bench.units import duration, long_time, unit_for
from tests.support.bench_values import make_results, make_series


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
    assert make_series((1.0, 1.1)).spread.between_percent is None
    # Times below the clock.
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


_SAMPLES = (4.0, 1.0, 3.0, 2.0, 10.0)


def test_percentiles_interpolate_between_sorted_values() -> None:
    assert percentile(_SAMPLES, 0) == 1
    assert percentile(_SAMPLES, 50) == 3
    assert percentile(_SAMPLES, 90) == pytest.approx(4 + 0.6 * 6)
    assert percentile(_SAMPLES, 100) == 10
    assert percentile((7.0,), 99) == 7


@pytest.mark.parametrize(("values", "percent"), [((), 50), ((1.0,), -1), ((1.0,), 101)])
def test_impossible_percentiles_are_refused(values: tuple[float, ...], percent: float) -> None:
    with pytest.raises(ValueError, match="percentile"):
        percentile(values, percent)


def test_stddev_is_that_of_a_sample() -> None:
    assert sample_stddev(_SAMPLES) == pytest.approx(statistics.stdev(_SAMPLES))
    assert sample_stddev((3.0,)) == 0
    # Far from zero, where the naive formula loses every digit.
    assert sample_stddev((1e9 + 1, 1e9 + 2, 1e9 + 3)) == pytest.approx(1)


def test_summary_keeps_the_order_of_samples() -> None:
    latency = summarize(_SAMPLES)
    assert latency.samples == _SAMPLES
    assert (latency.min, latency.median, latency.mean) == (1, 3, 4)
    assert latency.p99 == pytest.approx(4 + 0.96 * 6)


def test_no_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="no samples"):
        summarize(())


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
