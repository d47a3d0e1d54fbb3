"""Memory and sustained work in the summary, in their words."""

from __future__ import annotations

from typing import Any

import pytest

from etdeploy.bench.records.performance import (
    Energy,
    Memory,
    Sustained,
    SustainedPoint,
    WeightsKind,
)
from etdeploy.report.terminal.summary import memory_lines, sustained_lines
from tests.support.bench_values import make_record


def _sustained(**changes: Any) -> Sustained:
    values: dict[str, Any] = {
        "seconds": 600.0,
        "inferences": 30_000,
        "points": tuple(
            SustainedPoint(seconds=60 * i, inferences_per_s=50 if i < 3 else 25) for i in range(10)
        ),
        "start_per_s": 50.0,
        "end_per_s": 25.0,
        "retained_percent": 50.0,
        "to_minus_10_percent_s": 180.0,
        "to_minus_25_percent_s": 180.0,
    }
    return Sustained(**(values | changes))


def test_what_remains_when_it_dropped_and_the_curve() -> None:
    assert list(sustained_lines(_sustained())) == [
        "50 % of the rate remains after 10 min: from 50 to 25 inferences per second",
        "10 % slower after 3 min, 25 % after 3 min",
        "███▅▅▅▅▅▅▅",
    ]


def test_a_rate_that_stays() -> None:
    stays = _sustained(retained_percent=103.0, end_per_s=51.5)
    assert next(sustained_lines(stays)) == (
        "nothing of the rate is lost after 10 min: from 50 to 51.5 inferences per second"
    )
    lines = list(sustained_lines(_sustained(to_minus_10_percent_s=None)))
    assert lines[1] == "never 10 % slower for long"
    lines = list(sustained_lines(_sustained(to_minus_25_percent_s=None)))
    assert lines[1] == "10 % slower after 3 min, never 25 %"


def test_temperature_and_frequency_stand_beside_the_curve() -> None:
    points = tuple(
        SustainedPoint(seconds=60 * i, inferences_per_s=50, celsius=30.0 + i, khz=2_800_000 - i)
        for i in range(10)
    )
    curve = list(sustained_lines(_sustained(points=points)))[2]
    assert curve.endswith("  30 to 39 °C, 2.80 to 2.80 GHz")


@pytest.mark.parametrize(
    ("joules", "shown"), [(0.5, "0.5 J"), (0.0123, "12 mJ"), (0.0000041, "4.1 µJ")]
)
def test_energy_is_said_to_be_an_estimate_of_the_whole_device(joules: float, shown: str) -> None:
    energy = Energy(joules_per_inference=joules, watts=4.12, idle_watts=0.9, samples=600)
    assert list(sustained_lines(_sustained(energy=energy)))[-1] == (
        f"about {shown} per inference, estimated from the battery: the whole device takes 4.1 W, "
        "0.9 W before"
    )


def test_memory_says_what_is_the_runners_and_where_the_weights_are() -> None:
    memory = Memory(
        peak_rss_bytes=32_700_000,
        before_load_rss_bytes=4_300_000,
        planned_bytes=1_100,
        program_resident_bytes=4_096,
        weights=WeightsKind.LOADED,
    )
    assert list(memory_lines(make_record(memory=memory))) == [
        "32.7 MB resident, 4.3 MB before the program was loaded",
        "1.1 kB planned; the weights are copied; 4.1 kB of the 5.5 kB file stay in memory beside "
        "them",
    ]


def test_an_older_record_has_its_peak() -> None:
    assert list(memory_lines(make_record())) == ["32.7 MB resident"]
    assert not list(memory_lines(make_record(peak_rss_bytes=None)))


def test_a_system_that_reports_no_memory_still_has_the_plan() -> None:
    memory = Memory(peak_rss_bytes=None, planned_bytes=1_100)
    record = make_record(memory=memory, peak_rss_bytes=None)
    assert list(memory_lines(record)) == ["1.1 kB planned"]
