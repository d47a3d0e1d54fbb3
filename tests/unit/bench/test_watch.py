"""What is observed around passes, and the wait for a cool device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from etdeploy.bench import conditions as watch_module
from etdeploy.bench.conditions import (
    MOST_SAMPLES,
    DeviceWatch,
    Observation,
    cooling_sensor,
    wait_until_cool,
)
from etdeploy.bench.records.performance import CooldownWait
from etdeploy.core import cancel
from etdeploy.core.errors import DeviceError, Interrupted
from etdeploy.core.values import silent
from etdeploy.devices.base import DeviceState, TimedState
from etdeploy.recipe.sections.benchmark import Cooldown
from tests.support.bench_device import FakeDevice
from tests.support.facts import lacks


class Asked(FakeDevice):
    """Counts how often it is asked for its state; `gone` makes it fail."""

    def __init__(self) -> None:
        super().__init__((), ())
        self.asked = 0
        self.gone = False

    def state(self) -> DeviceState:
        self.asked += 1
        if self.gone:
            raise DeviceError("the device is gone", place="fake")
        return DeviceState(battery_percent=self.asked, battery_celsius=30.0)


_BEFORE = DeviceState(battery_percent=0)
_DURING = (TimedState(1.0, DeviceState(battery_percent=50)),)


def test_a_timed_pass_is_looked_at_before_and_after() -> None:
    device = Asked()
    watch = DeviceWatch(device, _BEFORE, None, silent)
    first = watch.begin(timed=True).end(_DURING)
    second = watch.begin(timed=True).end(())
    assert (first.before, first.after) == (
        _BEFORE,
        DeviceState(battery_percent=1, battery_celsius=30.0),
    )
    # The state after a pass is that before the next, and is not asked for again.
    assert (second.before, device.asked) == (first.after, 2)
    assert first.states == (_BEFORE, _DURING[0].state, first.after)
    assert 0 <= first.began_s <= first.ended_s <= second.began_s
    assert first.cooldown is None


def test_a_state_that_others_made_old_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Asked()
    watch = DeviceWatch(device, _BEFORE, None, silent)
    monkeypatch.setattr(watch_module, "_FRESH_S", -1.0)
    before = watch.begin(timed=True).end(()).before
    assert before
    assert before.battery_percent == 1


def test_a_device_that_does_not_answer_is_told_by_the_next_pass() -> None:
    device = Asked()
    device.gone = True
    observed = DeviceWatch(device, _BEFORE, None, silent).begin(timed=True).end(())
    assert (observed.before, observed.after) == (_BEFORE, None)


def test_a_device_waits_before_a_timed_pass() -> None:
    watch = DeviceWatch(Asked(), _BEFORE, Cooldown(max_celsius=35), silent)
    cooldown = watch.begin(timed=True).end(()).cooldown
    assert cooldown
    assert (cooldown.sensor, cooldown.to_celsius, cooldown.reached) == ("battery", 30.0, True)


def test_a_clock_that_is_moved_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter((1000.0, 4600.0))
    monkeypatch.setattr(watch_module, "_clock_offset_s", lambda: next(times))
    assert (
        DeviceWatch(Asked(), _BEFORE, None, silent).begin(timed=True).end(()).clock_step_s == 3600.0
    )


def test_a_record_keeps_a_bounded_number_of_samples() -> None:
    during = tuple(TimedState(float(n), DeviceState()) for n in range(1, 1001))
    observed = Observation(began_s=5.0, ended_s=1006.0, during=during, after=DeviceState())
    samples = list(observed.samples("sustained"))
    assert MOST_SAMPLES / 2 < len(samples) <= MOST_SAMPLES + 1
    assert (samples[0].seconds, samples[-1].seconds) == (6.0, 1006.0)
    assert {sample.pass_name for sample in samples} == {"sustained"}
    few = Observation(during=during[:3])
    assert [sample.seconds for sample in few.samples("timing")] == [1.0, 2.0, 3.0]


class Clock:
    """Goes on by what is slept."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def cooled(
    celsius: Sequence[float | None], **wanted: float
) -> tuple[CooldownWait | None, list[tuple[str, bool]]]:
    """Waits with readings of the battery; the last one stays."""
    clock, told = Clock(), list[tuple[str, bool]]()
    readings: Iterator[float | None] = iter(celsius)
    last = celsius[-1]
    found = wait_until_cool(
        lambda: DeviceState(battery_celsius=next(readings, last)),
        Cooldown(**wanted),
        lambda text, fraction=None: told.append((text, fraction is None)),
        clock,
        clock.sleep,
    )
    return found, told


def test_a_cool_device_does_not_wait() -> None:
    assert cooled([36.9]) == (
        CooldownWait(
            sensor="battery", from_celsius=36.9, to_celsius=36.9, waited_s=0.0, reached=True
        ),
        [],
    )  # fmt: skip


def test_a_warm_device_waits_and_says_for_what() -> None:
    found, told = cooled([41.0, 39.0, 36.5], timeout_s=300)
    assert found
    assert (found.from_celsius, found.to_celsius, found.reached) == (41.0, 36.5, True)
    assert found.waited_s == pytest.approx(10, abs=0.1)
    facts = [("37 °C", "41.0 °C", "5 min", True), ("37 °C", "39.0 °C", "4.9 min", False)]
    assert [at_once for _, at_once in told] == [at_once for *_, at_once in facts]
    for (text, _), (*words, _) in zip(told, facts, strict=True):
        assert not lacks(text, "battery", *words)


def test_a_sensor_that_stops_answering_counts_as_it_was() -> None:
    found, _ = cooled([41.0, None], timeout_s=7)
    assert found
    assert (found.to_celsius, found.reached) == (41.0, False)
    assert found.waited_s == pytest.approx(7, abs=0.3)


def test_a_device_without_a_temperature_does_not_wait() -> None:
    assert cooled([None]) == (None, [])


def test_a_device_that_goes_away_ends_the_wait() -> None:
    def gone() -> DeviceState:
        raise DeviceError("the device is gone", place="android")

    with pytest.raises(DeviceError):
        wait_until_cool(gone, Cooldown(), silent)


def test_a_request_to_stop_ends_the_wait() -> None:
    clock = Clock()

    def sleep(seconds: float) -> None:
        clock.sleep(seconds)
        cancel.request()

    with cancel.trapped_signals(), pytest.raises(Interrupted):
        wait_until_cool(
            lambda: DeviceState(battery_celsius=50.0),
            Cooldown(timeout_s=9000),
            silent,
            clock,
            sleep,
        )
    assert clock.now < 101


@pytest.mark.parametrize(
    ("temperatures", "sensor"),
    [
        ({"acpitz": 60.0, "x86_pkg_temp": 51.0}, ("x86_pkg_temp", 51.0)),
        ({"cpu-0-0": 41.0, "cpu-1-0": 43.5, "gpu": 70.0}, ("cpu-1-0", 43.5)),
        ({"acpitz": 27.8, "thermal_zone1": 29.8}, ("thermal_zone1", 29.8)),
        ({}, None),
    ],
)
def test_without_a_battery_the_processor_is_waited_for(
    temperatures: dict[str, float], sensor: tuple[str, float] | None
) -> None:
    assert cooling_sensor(DeviceState(temperatures_celsius=temperatures)) == sensor
    with_battery = DeviceState(temperatures_celsius=temperatures, battery_celsius=30.0)
    assert cooling_sensor(with_battery) == ("battery", 30.0)
