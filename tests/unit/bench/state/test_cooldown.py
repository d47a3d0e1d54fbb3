"""Waiting for a cool device, with a clock of the test's own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from etdeploy.bench.records.conditions import CooldownWait
from etdeploy.bench.watch import cooling_sensor, wait_until_cool
from etdeploy.core import cancel
from etdeploy.core.errors import DeviceError, Interrupted
from etdeploy.core.values import silent
from etdeploy.devices.base import DeviceState
from etdeploy.recipe.model import Cooldown


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
    assert told == [
        ("cooling down to 37 °C: battery at 41.0 °C, for at most 5 min", True),
        ("cooling down to 37 °C: battery at 39.0 °C, for at most 4.9 min", False),
    ]


def test_the_wait_ends_with_the_time_limit() -> None:
    found, _ = cooled([41.0], timeout_s=12)
    assert found
    assert (found.to_celsius, found.reached) == (41.0, False)
    assert found.waited_s == pytest.approx(12, abs=0.3)


def test_a_sensor_that_stops_answering_counts_as_it_was() -> None:
    found, _ = cooled([41.0, None], timeout_s=7)
    assert found
    assert (found.to_celsius, found.reached) == (41.0, False)


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
