"""A sustained pass with the states that were read beside it."""

from __future__ import annotations

import pytest

from etdeploy.bench.records.conditions import Disturbance, DisturbanceKind
from etdeploy.bench.sustained import Reading, celsius, khz, sustained_notes, sustained_of
from etdeploy.devices.base import CpuCluster, DeviceState
from etdeploy.runner.protocol import RunnerSustained

# 10 s at 100, 10 s at 50 inferences per second.
_WORK = RunnerSustained(
    began_s=0.5,
    stretches=tuple((0.5 * i, 50 if i <= 20 else 25) for i in range(1, 41)),
)


def _reading(at_s: float, heat: float) -> Reading:
    cluster = CpuCluster(cpus=(0,), current_khz=int(3e6 - 1e4 * heat), max_khz=3_000_000)
    state = DeviceState(
        temperatures_celsius={"cpu-0": heat},
        clusters=(cluster,),
        battery_milliamps=1000,
        battery_volts=4,
    )
    return at_s, state


_READINGS = [_reading(at_s, 30 + at_s) for at_s in range(22)]


def test_what_the_work_shows() -> None:
    shown = sustained_of(_WORK, _READINGS, idle=DeviceState())
    assert (shown.seconds, shown.inferences) == (20.0, 1500)
    assert (shown.start_per_s, shown.end_per_s, shown.retained_percent) == (100, 50, 50)
    assert shown.to_minus_10_percent_s == pytest.approx(10.5)
    assert shown.energy is not None
    assert shown.energy.joules_per_inference == pytest.approx(4 * 20 / 1500)
    assert shown.energy.idle_watts is None
    assert len(shown.points) == 40


def test_states_stand_beside_the_stretch_in_which_they_were_read() -> None:
    shown = sustained_of(_WORK, _READINGS)
    # The work began half a second after the runner, and this stretch ended 10 s later.
    tenth = shown.points[19]
    assert tenth.seconds == 10.0
    assert tenth.celsius == pytest.approx(40.5, abs=0.6)
    assert tenth.khz == pytest.approx(2_595_000, abs=6_000)


def test_a_state_that_is_far_away_is_not_beside_it() -> None:
    shown = sustained_of(_WORK, _READINGS[:3])
    assert shown.points[5].celsius is not None
    assert shown.points[-1].celsius is None
    assert sustained_of(_WORK).points[0].khz is None


def test_throttling_is_the_result_and_no_disturbance() -> None:
    busy = Disturbance(kind=DisturbanceKind.BUSY, text="Other work took 1.0 of 2 processors.")
    hot = Disturbance(kind=DisturbanceKind.THROTTLED, text="The device was hot.")
    shown = sustained_of(_WORK, disturbances=(hot, busy))
    assert shown.disturbances == (busy,)
    assert any("more than heat. Other work" in note for note in sustained_notes(shown))


def test_a_single_inference_keeps_its_rate() -> None:
    shown = sustained_of(RunnerSustained(began_s=0, stretches=((1.5, 1),)))
    assert shown.inferences == 1
    assert shown.retained_percent == pytest.approx(100)
    assert (shown.to_minus_10_percent_s, shown.energy) == (None, None)


def test_the_hottest_sensor_of_the_processor_counts() -> None:
    sensors = {"cpu-1": 50.0, "SOC": 60.0, "modem": 90.0}
    assert celsius(DeviceState(temperatures_celsius=sensors, battery_celsius=30)) == 60
    assert celsius(DeviceState(battery_celsius=30)) == 30
    assert celsius(DeviceState()) is None


def test_the_fastest_cluster_counts() -> None:
    little = CpuCluster(cpus=(0, 1), current_khz=1_800_000, max_khz=1_800_000)
    big = CpuCluster(cpus=(2,), current_khz=900_000, max_khz=3_000_000)
    assert khz(DeviceState(clusters=(little, big))) == 900_000
    assert khz(DeviceState(clusters=(little, CpuCluster(cpus=(2,))))) == 1_800_000
    assert khz(DeviceState()) is None
