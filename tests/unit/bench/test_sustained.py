"""A sustained pass: rates, drops, energy, and what is read beside it."""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Callable
from typing import Any

import pytest

from etdeploy.bench import measure
from etdeploy.bench.measure import show_elapsed, sustained_cooldown
from etdeploy.bench.notes import sustained_notes
from etdeploy.bench.records.performance import (
    CooldownWait,
    Disturbance,
    DisturbanceKind,
    Sustained,
    SustainedPoint,
)
from etdeploy.bench.sustained import (
    Reading,
    Stretch,
    celsius,
    drop_s,
    end_rate,
    estimate_energy,
    khz,
    make_sustained,
    mean_rate,
    start_rate,
)
from etdeploy.devices.base import Capabilities, CpuCluster, DeviceState
from etdeploy.recipe.sections.benchmark import Cooldown
from etdeploy.runner.protocol import RunnerSustained
from tests.support.facts import lacks

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
    shown = make_sustained(_WORK, _READINGS, idle=DeviceState())
    assert (shown.seconds, shown.inferences) == (20.0, 1500)
    assert (shown.start_per_s, shown.end_per_s, shown.retained_percent) == (100, 50, 50)
    assert shown.to_minus_10_percent_s == pytest.approx(10.5)
    assert shown.energy is not None
    assert shown.energy.joules_per_inference == pytest.approx(4 * 20 / 1500)
    assert shown.energy.idle_watts is None
    assert len(shown.points) == 40


def test_states_stand_beside_the_stretch_in_which_they_were_read() -> None:
    shown = make_sustained(_WORK, _READINGS)
    # The work began half a second after the runner, and this stretch ended 10 s later.
    tenth = shown.points[19]
    assert tenth.seconds == 10.0
    assert tenth.celsius == pytest.approx(40.5, abs=0.6)
    assert tenth.khz == pytest.approx(2_595_000, abs=6_000)


def test_a_state_that_is_far_away_is_not_beside_it() -> None:
    shown = make_sustained(_WORK, _READINGS[:3])
    assert shown.points[5].celsius is not None
    assert shown.points[-1].celsius is None
    assert make_sustained(_WORK).points[0].khz is None


def test_throttling_is_the_result_and_no_disturbance() -> None:
    busy = Disturbance(kind=DisturbanceKind.BUSY, text="Other work took 1.0 of 2 processors.")
    hot = Disturbance(kind=DisturbanceKind.THROTTLED, text="The device was hot.")
    shown = make_sustained(_WORK, disturbances=(hot, busy))
    assert shown.disturbances == (busy,)
    assert any("Other work" in note for note in sustained_notes(shown))


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


def _curve(per_s: Callable[[float], float], count: int = 100, each_s: float = 6.0) -> list[Stretch]:
    """A pass of stretches whose rate follows a function of the time in seconds."""
    return [
        Stretch(i * each_s, (i + 1) * each_s, round(each_s * per_s((i + 0.5) * each_s)))
        for i in range(count)
    ]


def test_a_rate_is_of_whole_stretches() -> None:
    assert mean_rate([Stretch(0, 1, 10), Stretch(1, 4, 15)]) == 25 / 4
    assert mean_rate([Stretch(0, 0, 1)]) == 0


def test_a_step_is_found_where_it_is() -> None:
    noise = random.Random(2)
    throttled = _curve(lambda s: noise.gauss(100 if s < 95 else 62, 2))
    assert end_rate(throttled) / start_rate(throttled) == pytest.approx(0.62, abs=0.04)
    assert drop_s(throttled, 0.1) == pytest.approx(95, abs=7)
    assert drop_s(throttled, 0.25) == pytest.approx(95, abs=7)


def test_a_dip_that_recovers_is_no_drop() -> None:
    assert drop_s(_curve(lambda s: 50 if 200 < s < 230 else 100), 0.1) is None


def test_a_governor_that_swings_counts_by_its_mean() -> None:
    swinging = _curve(lambda s: 100 if s < 120 or math.sin(s / 4) > 0 else 60)
    assert end_rate(swinging) == pytest.approx(80, abs=8)
    assert drop_s(swinging, 0.1) == pytest.approx(120, abs=20)
    assert drop_s(swinging, 0.25) is None


@pytest.mark.parametrize("count", range(1, 12))
def test_few_stretches_have_a_rate_and_no_drop(count: int) -> None:
    few = _curve(lambda _: 2.0, count, 0.5)
    assert (start_rate(few), end_rate(few)) == (2.0, 2.0)
    assert drop_s(few, 0.1) is None


@pytest.mark.parametrize("count", [10, 20, 100])
def test_one_slow_stretch_at_the_end_is_no_drop(count: int) -> None:
    end_s = 6.0 * (count - 1)
    assert drop_s(_curve(lambda s: 50 if s > end_s else 100, count), 0.1) is None


def _state(milliamps: float | None, volts: float | None = 4.0, **more: bool) -> DeviceState:
    return DeviceState(battery_milliamps=milliamps, battery_volts=volts, **more)


_BATTERY = [(0.0, _state(1000.0)), (10.0, _state(1000.0)), (20.0, _state(2000.0))]


def test_power_is_averaged_over_time() -> None:
    energy = estimate_energy(_BATTERY, _state(250.0), 20.0, 100)
    assert energy is not None
    assert energy.watts == pytest.approx((10 * 4 + 10 * 6) / 20)
    assert energy.joules_per_inference == pytest.approx(5 * 20 / 100)
    assert (energy.idle_watts, energy.samples) == (1.0, 3)


@pytest.mark.parametrize(
    "readings",
    [
        [],
        _BATTERY[:2],
        [*_BATTERY, (30.0, _state(500.0, charging=True))],
        [*_BATTERY, (30.0, _state(-500.0))],
        [(at, _state(None)) for at, _ in _BATTERY],
        [(at, _state(1000.0, None)) for at, _ in _BATTERY],
        [(at / 100, state) for at, state in _BATTERY],
        [(0.0, state) for _, state in _BATTERY],
    ],
    ids=[
        "none", "two", "charging", "current into it", "no current", "no voltage",
        "a short part of the time", "all at once",
    ],
)  # fmt: skip
def test_what_says_nothing_gives_nothing(readings: list[tuple[float, DeviceState]]) -> None:
    assert estimate_energy(readings, None, 20.0, 100) is None


def test_no_idle_power_of_a_device_that_was_charged_before() -> None:
    energy = estimate_energy(_BATTERY, _state(-900.0), 20.0, 100)
    assert energy is not None
    assert energy.idle_watts is None


def _sustained(count: int = 100, **changes: Any) -> Sustained:
    values: dict[str, Any] = {
        "seconds": 600.0,
        "inferences": 30_000,
        "points": (SustainedPoint(seconds=6, inferences_per_s=50),) * count,
        "start_per_s": 50.0,
        "end_per_s": 49.0,
        "retained_percent": 98.0,
        "to_minus_10_percent_s": None,
        "to_minus_25_percent_s": None,
    }
    return Sustained(**(values | changes))


def test_what_is_lost_is_said_with_what_to_plan_with() -> None:
    lost = _sustained(retained_percent=62.4, end_per_s=31.2, to_minus_10_percent_s=95.0)
    [note] = sustained_notes(lost)
    assert not lacks(note, "62 %", "10 min", "95 s", "31.2")


def test_few_stretches_are_no_ground_for_a_judgement() -> None:
    [note] = sustained_notes(_sustained(2, inferences=2, retained_percent=50.0))
    assert "2 inferences in 10 min" in note
    assert "benchmark.sustained_s=600" in note


def test_a_warm_start_is_said() -> None:
    warm = CooldownWait(
        sensor="battery", from_celsius=45, to_celsius=41, waited_s=300, reached=False
    )
    [note] = sustained_notes(_sustained(cooldown=warm))
    assert "battery was at 41 °C" in note
    cool = warm.model_copy(update={"reached": True})
    assert not list(sustained_notes(_sustained(cooldown=cool)))


_PHONE = DeviceState(battery_celsius=41.0)


def test_time_is_told_until_the_work_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "_EVERY_S", 0.001)
    told: list[tuple[str, float | None]] = []
    twice = threading.Event()

    def progress(text: str, fraction: float | None = None) -> None:
        told.append((text, fraction))
        if len(told) > 1:
            twice.set()

    with show_elapsed(progress, "sustained pass", 0.002):
        assert twice.wait(30)
    text, fraction = told[-1]
    assert text.startswith("sustained pass: 0 s of 0")
    assert 0 <= (fraction or 0) <= 1
    assert not any(thread.name == "elapsed time" for thread in threading.enumerate())


@pytest.mark.parametrize(
    ("recipe", "state", "shares_cores", "cooldown"),
    [
        (Cooldown(max_celsius=30), DeviceState(), False, Cooldown(max_celsius=30)),
        (None, _PHONE, False, Cooldown(max_celsius=37, timeout_s=300)),
        (None, DeviceState(temperatures_celsius={"cpu-thermal": 60.0}), False, None),
        (None, _PHONE, True, None),
    ],
)
def test_a_phone_cools_down_before_sustained_work(
    recipe: Cooldown | None, state: DeviceState, shares_cores: bool, cooldown: Cooldown | None
) -> None:
    device = Capabilities(shares_cores=shares_cores)
    assert sustained_cooldown(recipe, state, device) == cooldown
