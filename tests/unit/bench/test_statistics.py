"""Statistics against values worked out by hand and by Python's own module."""

from __future__ import annotations

import statistics

import pytest

from etdeploy.bench.statistics import percentile, sample_stddev, summarize

_SAMPLES = (4.0, 1.0, 3.0, 2.0, 10.0)


def test_percentiles_interpolate_between_sorted_values() -> None:
    assert percentile(_SAMPLES, 0) == 1
    assert percentile(_SAMPLES, 50) == 3
    assert percentile(_SAMPLES, 90) == pytest.approx(4 + 0.6 * 6)
    assert percentile(_SAMPLES, 100) == 10
    assert percentile((7.0,), 99) == 7


def test_percentiles_are_those_of_the_inclusive_method() -> None:
    samples = [0.5, 0.1, 9.0, 4.2, 4.2, 3.3, 8.1]
    quantiles = statistics.quantiles(samples, n=100, method="inclusive")
    for percent in (1, 10, 25, 90, 99):
        assert percentile(samples, percent) == pytest.approx(quantiles[percent - 1])


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
