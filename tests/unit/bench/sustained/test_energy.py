"""Energy from readings of a battery."""

from __future__ import annotations

import pytest

from etdeploy.bench.sustained import estimate
from etdeploy.devices.base import DeviceState


def _state(milliamps: float | None, volts: float | None = 4.0, **more: bool) -> DeviceState:
    return DeviceState(battery_milliamps=milliamps, battery_volts=volts, **more)


_READINGS = [(0.0, _state(1000.0)), (10.0, _state(1000.0)), (20.0, _state(2000.0))]


def test_power_is_averaged_over_time() -> None:
    energy = estimate(_READINGS, _state(250.0), 20.0, 100)
    assert energy is not None
    assert energy.watts == pytest.approx((10 * 4 + 10 * 6) / 20)
    assert energy.joules_per_inference == pytest.approx(5 * 20 / 100)
    assert (energy.idle_watts, energy.samples) == (1.0, 3)


@pytest.mark.parametrize(
    "readings",
    [
        [],
        _READINGS[:2],
        [*_READINGS, (30.0, _state(500.0, charging=True))],
        [*_READINGS, (30.0, _state(-500.0))],
        [(at, _state(None)) for at, _ in _READINGS],
        [(at, _state(1000.0, None)) for at, _ in _READINGS],
        [(at / 100, state) for at, state in _READINGS],
        [(0.0, state) for _, state in _READINGS],
    ],
    ids=[
        "none", "two", "charging", "current into it", "no current", "no voltage",
        "a short part of the time", "all at once",
    ],
)  # fmt: skip
def test_what_says_nothing_gives_nothing(readings: list[tuple[float, DeviceState]]) -> None:
    assert estimate(readings, None, 20.0, 100) is None


def test_no_idle_power_of_a_device_that_was_charged_before() -> None:
    energy = estimate(_READINGS, _state(-900.0), 20.0, 100)
    assert energy is not None
    assert energy.idle_watts is None


def test_no_inference_has_no_energy() -> None:
    assert estimate(_READINGS, None, 20.0, 0) is None
