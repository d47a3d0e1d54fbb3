"""What disturbs a start, and what does not."""

from __future__ import annotations

from typing import Any

import pytest

from etdeploy.bench.conditions import (
    limits_of,
    load_disturbance,
    run_disturbances,
    start_disturbances,
)
from etdeploy.bench.records.conditions import Disturbance, DisturbanceKind
from etdeploy.bench.watch import Observed
from etdeploy.devices.base import CpuCluster, DeviceState, TimedState
from etdeploy.runner.protocol import Processors, RunnerResults


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
    seen = Observed(before=before, during=timed, **observed)
    found = start_disturbances(seen, results(processors, threads), limits_of(states))
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
    assert status == {
        "throttled": "The device reported that it throttles: its thermal status was moderate."
    }
    assert "too weak" in told(DeviceState(thermal_status="under-voltage"))["throttled"]


def test_a_limit_that_is_lowered_meanwhile_is_throttling() -> None:
    assert told(limit(2800000), limit(1800000), limit(2800000)) == {
        "throttled": "The frequency of processors 4-6 was limited to 1.80 GHz in place of 2.80."
    }
    # A device of another package may not tell whose limit it is.
    assert told(limit(2800000, ()), limit(1800000, ())) == {}
    # Rounded by the kernel, and not lowered.
    assert told(limit(2800000), limit(2790000)) == {}


def test_a_limit_that_is_always_low_is_somebodys_choice() -> None:
    state = DeviceState(
        clusters=(CpuCluster(cpus=(0,), max_khz=1000000, hardware_max_khz=2800000),)
    )
    assert told(state, state) == {}


def test_a_start_after_which_the_limit_rose_was_throttled() -> None:
    hot = Observed(before=limit(1800000, (7,)), after=limit(1800000, (7,)))
    limits = limits_of((limit(1800000, (7,)), limit(2800000, (7,))))
    [found] = start_disturbances(hot, results(), limits)
    assert found.text.startswith("The frequency of processor 7 was limited to 1.80 GHz")


def test_a_processor_that_counts_its_heat() -> None:
    first, last = DeviceState(throttle_events=7), DeviceState(throttle_events=9)
    assert told(first, last) == {
        "throttled": "The processor slowed itself down for heat 2 times."
    }  # fmt: skip


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


def test_a_run_is_disturbed_when_most_of_its_starts_are() -> None:
    busy = Disturbance(kind=DisturbanceKind.BUSY, text="Other work took 1.0 of 2 processors.")
    assert run_disturbances([(busy,), (), (busy,)]) == (busy,)
    assert run_disturbances([(busy,), (), ()]) == ()
    assert run_disturbances([(busy,), ()]) == ()
    assert run_disturbances([()]) == ()


def test_a_load_average_tells_where_nothing_else_does() -> None:
    [found] = load_disturbance(DeviceState(load_average=3.5), 2)
    assert (found.kind, "load average 3.5 on 2 processors" in found.text) == ("busy", True)
    assert load_disturbance(DeviceState(load_average=1.9), 2) == ()
    assert load_disturbance(DeviceState(load_average=9.0), None) == ()
    assert load_disturbance(DeviceState(), 2) == ()
