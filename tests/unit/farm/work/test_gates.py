"""Gates: what a device has to be, and the wait for it."""

from __future__ import annotations

from typing import Any

import pytest

from etdeploy.core import cancel
from etdeploy.core.errors import Interrupted
from etdeploy.core.values import silent
from etdeploy.devices.base import DeviceState
from etdeploy.farm.model import Gates, Health
from etdeploy.farm.work.attempt import GateError, closed_gates, health_of, wait_until_open

ALL = Gates(battery_percent=50, temperature_celsius=35.0, free_bytes=1_000_000_000)


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ({"battery_percent": 49}, "battery at 49 % (at least 50 %)"),
        (
            {"battery_percent": 3, "charging": False},
            "battery at 3 %, not charging (at least 50 %)",
        ),
        ({"battery_celsius": 35.1}, "battery at 35.1 °C (at most 35 °C)"),
        ({"temperatures_celsius": {"cpu": 80.0, "x": 90.0}}, "cpu at 80.0 °C (at most 35 °C)"),
        ({"battery_celsius": 30.0, "temperatures_celsius": {"cpu": 80.0}}, None),
        ({"free_storage_bytes": 1}, "1 B free (at least 1.0 GB)"),
        ({"battery_percent": 50, "battery_celsius": 35.0}, None),
        # What is not reported closes nothing.
        ({}, None),
    ],
)
def test_which_gates_are_closed(state: dict[str, Any], reason: str | None) -> None:
    assert closed_gates(ALL, DeviceState(**state)) == reason
    assert closed_gates(Gates(), DeviceState(**state)) is None


def test_all_closed_gates_are_named() -> None:
    state = DeviceState(battery_percent=1, battery_celsius=50.0, free_storage_bytes=2)
    assert str(closed_gates(ALL, state)).count("(at") == 3


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_it_waits_until_the_gates_open() -> None:
    clock, told, idle = Clock(), [], []

    def read() -> DeviceState:
        return DeviceState(battery_celsius=40.0 if clock.now < 100 else 30.0)

    wait_until_open(
        ALL, read, 600.0, lambda text, _=None: told.append(text), lambda: idle.append(clock.now),
        clock, clock.sleep,
    )  # fmt: skip
    assert 100 <= clock.now < 115
    assert told[0] == "waiting for at most 10 min: battery at 40.0 °C (at most 35 °C)"
    assert idle == [0.0]


def test_a_gate_that_stays_closed_is_told() -> None:
    clock = Clock()
    with pytest.raises(GateError, match=r"battery at 40\.0 °C"):
        wait_until_open(
            ALL, lambda: DeviceState(battery_celsius=40.0), 60.0, silent, clock=clock,
            sleep=clock.sleep,
        )  # fmt: skip
    assert clock.now == pytest.approx(60.0)


def test_a_stop_ends_the_wait() -> None:
    flag = cancel.Flag()
    flag.set()
    with cancel.bound(flag), pytest.raises(Interrupted):
        wait_until_open(ALL, lambda: DeviceState(battery_percent=1), 60.0, silent)


def test_health() -> None:
    state = DeviceState(
        battery_percent=80, temperatures_celsius={"cpu": 51.5}, thermal_status="light",
        free_storage_bytes=7,
    )  # fmt: skip
    assert health_of(state) == Health(
        battery_percent=80, temperature_celsius=51.5, free_bytes=7, thermal_status="light"
    )
