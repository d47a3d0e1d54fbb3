"""What a measurement was done under, and what disturbs a start."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from etdeploy.bench.assemble import find_disturbances
from etdeploy.bench.conditions import (
    Observation,
    frequency_limits,
    load_average_disturbance,
    start_disturbances,
)
from etdeploy.bench.notes import cooldown_notes
from etdeploy.bench.records.performance import CooldownWait, DisturbanceKind
from etdeploy.bench.run_pass import PassResult, Results, add_disturbances
from etdeploy.bench.starts import StartSeries
from etdeploy.devices.base import CpuCluster, DeviceState, TimedState
from etdeploy.recipe.sections.benchmark import Cooldown
from etdeploy.runner.protocol import Processors, RunnerResults
from tests.support.bench_values import make_device, make_pass, make_results
from tests.support.facts import lacks


def limited(khz: int) -> DeviceState:
    return DeviceState(clusters=(CpuCluster(cpus=(0,), max_khz=khz),))


def started(number: int, observed: Observation, busy_s: float | None = None) -> PassResult:
    processors = Processors(count=2, wall_s=1, own_s=1, busy_s=busy_s) if busy_s else None
    return replace(make_pass(number, make_results(processors=processors)), observation=observed)


def results_of(*starts: PassResult) -> Results:
    return {start.step.key: start for start in starts}


def test_a_limit_is_low_by_what_the_whole_run_shows() -> None:
    hot, cool = Observation(before=limited(1_000_000)), Observation(after=limited(2_000_000))
    found = add_disturbances(results_of(started(1, hot), started(2, cool)), make_device())
    assert [[d.kind for d in each.disturbances] for each in found.values()] == [["throttled"], []]
    after = make_device(after=limited(3_000_000))
    assert all(each.disturbances for each in add_disturbances(found, after).values())


def cooled(to_celsius: float, *, reached: bool) -> Observation:
    return Observation(
        cooldown=CooldownWait(
            sensor="battery", from_celsius=41, to_celsius=to_celsius, waited_s=9, reached=reached
        )
    )


def test_a_device_that_stayed_warm_is_told_with_what_to_do() -> None:
    wanted = Cooldown(max_celsius=35, timeout_s=300)
    starts = results_of(
        started(1, cooled(36.0, reached=False)), started(2, cooled(34.0, reached=True))
    )
    [note] = cooldown_notes(starts, wanted)
    assert not lacks(
        note, "35 °C", "5 min", "1 of 2 starts", "36.0", "benchmark.cooldown.timeout_s=600"
    )
    assert not list(cooldown_notes(results_of(started(1, cooled(34.0, reached=True))), wanted))


def test_a_wish_for_a_cool_device_without_a_sensor_is_told() -> None:
    [note] = cooldown_notes(results_of(started(1, Observation())), Cooldown())
    assert "no temperature" in note
    assert not list(cooldown_notes(results_of(started(1, Observation())), None))


def results(processors: Processors | None = None, threads: int = 2) -> RunnerResults:
    return RunnerResults(
        schema_version=1, executorch_version="1.5.1", method="forward", started_unix_s=0,
        threads=threads, warmup=5, load_program_ms=1, load_method_ms=1, rss_after_load_bytes=0,
        first_inference_ms=1, outputs=(), peak_rss_bytes=0, samples_ms=(1.0,),
        processors=processors,
    )  # fmt: skip


def told(
    *states: DeviceState, processors: Processors | None = None, threads: int = 2, **observed: Any
) -> dict[str, str]:
    """Sentences by kind: of states before, during and after a start."""
    before, *during = states or (DeviceState(),)
    timed = tuple(TimedState(float(n), state) for n, state in enumerate(during, 1))
    seen = Observation(before=before, during=timed, **observed)
    found = start_disturbances(seen, results(processors, threads), frequency_limits(states))
    return {each.kind.value: each.text for each in found}


def limit(khz: int | None, cpus: tuple[int, ...] = (4, 5, 6)) -> DeviceState:
    return DeviceState(clusters=(CpuCluster(cpus=cpus, max_khz=khz),))


def used(**values: float | None) -> Processors:
    """Two seconds of a quiet machine with two processors, but for `values`."""
    quiet: dict[str, Any] = {
        "wall_s": 2.0,
        "own_s": 3.8,
        "waited_s": 0.01,
        "busy_s": 3.86,
        "stolen_s": 0.0,
    }
    return Processors(count=2, **{**quiet, **values})


def test_a_quiet_start_is_not_disturbed() -> None:
    state = DeviceState(thermal_status="none", throttle_events=7, power_saving=False)
    assert told(state, state, processors=used(), clock_step_s=0.02) == {}
    assert told(limit(2000000), limit(2000000)) == {}
    assert told() == {}


def test_a_thermal_status_is_throttling() -> None:
    status = told(DeviceState(thermal_status="none"), DeviceState(thermal_status="moderate"))
    assert set(status) == {"throttled"}
    assert "moderate" in status["throttled"]
    assert "too weak" in told(DeviceState(thermal_status="under-voltage"))["throttled"]


def test_a_limit_that_is_lowered_meanwhile_is_throttling() -> None:
    [lowered] = told(limit(2800000), limit(1800000), limit(2800000)).items()
    assert lowered[0] == "throttled"
    assert re.findall(r"\d[\d.-]*\d", lowered[1]) == ["4-6", "1.80", "2.80"]
    # A device of another package may not tell whose limit it is.
    assert told(limit(2800000, ()), limit(1800000, ())) == {}
    # Rounded by the kernel, and not lowered.
    assert told(limit(2800000), limit(2790000)) == {}


def test_a_processor_that_counts_its_heat() -> None:
    first, last = DeviceState(throttle_events=7), DeviceState(throttle_events=9)
    assert "heat 2 times" in told(first, last)["throttled"]


@pytest.mark.parametrize(
    ("processors", "text"),
    [
        (used(busy_s=5.8, own_s=3.8), "Other work took 1.0 of 2 processors."),
        (used(waited_s=0.3), "The runner waited for a processor 15 % of its time"),
        (used(stolen_s=0.9), "The virtual machine's host took 22 % of the processors' time."),
        # 100 ms: what Linux counts in hundredths of a second does not suffice for a verdict.
        (used(wall_s=0.1, own_s=0.19, busy_s=0.22, waited_s=0.0), None),
        (used(wall_s=0.1, own_s=0.1, busy_s=0.2), "Other work took 1.0 of 2 processors."),
        # A quiet machine, as measured: services of the system.
        (used(busy_s=3.98, waited_s=0.02), None),
        (used(waited_s=None, busy_s=None, stolen_s=None), None),
        (used(wall_s=0.0, own_s=0.0, busy_s=0.0), None),
    ],
)
def test_other_work(processors: Processors, text: str | None) -> None:
    found = told(processors=processors)
    assert (found == {}) if text is None else found["busy"].startswith(text)


def test_more_threads_than_processors_wait_for_each_other() -> None:
    assert told(processors=used(waited_s=0.9), threads=4) == {}


def test_a_mode_that_saves_power() -> None:
    assert set(told(DeviceState(power_saving=True))) == {"power_saving"}


@pytest.mark.parametrize(
    ("here", "there", "text"),
    [
        (3600.0, 0.0, "The clock of this machine was moved forward by 3,600 s"),
        (-86_400.0, 0.0, "The clock of this machine was moved back by 86,400 s"),
        (0.0, 5.0, "The clock of the device was moved forward by 5 s"),
    ],
)
def test_a_clock_that_jumps(here: float, there: float, text: str) -> None:
    found = told(processors=used(clock_step_s=there), clock_step_s=here)
    assert set(found) == {"clock"}
    assert found["clock"].startswith(text)


def test_a_load_average_tells_where_nothing_else_does() -> None:
    [found] = load_average_disturbance(DeviceState(load_average=3.5), 2)
    assert (found.kind, "3.5 on 2" in found.text) == ("busy", True)
    assert load_average_disturbance(DeviceState(load_average=1.9), 2) == ()
    assert load_average_disturbance(DeviceState(load_average=9.0), None) == ()
    assert load_average_disturbance(DeviceState(), 2) == ()


def test_a_load_average_counts_only_where_the_runner_knows_no_better() -> None:
    loaded = make_device(before=DeviceState(load_average=9.0))
    told = find_disturbances(StartSeries((started(1, Observation()),)), loaded)
    assert [each.kind for each in told] == [DisturbanceKind.BUSY]
    assert find_disturbances(StartSeries((started(1, Observation(), busy_s=1.0),)), loaded) == ()
