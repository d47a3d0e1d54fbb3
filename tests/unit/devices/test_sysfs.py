"""Battery and temperatures from /sys."""

from __future__ import annotations

from etdeploy.devices.base import DeviceState
from etdeploy.devices.sysfs import parse_state

THERMAL = "class/thermal/thermal_zone"
BATTERY = "/sys/class/power_supply/BAT0"


def test_zones_of_one_name_are_told_apart() -> None:
    text = (
        f"{THERMAL}0/type:acpitz\n{THERMAL}0/temp:27800\n{THERMAL}1/type:acpitz\n"
        f"{THERMAL}1/temp:29800\n{THERMAL}2/temp:-1000\n{THERMAL}3/type:gone\n{THERMAL}4/temp:\n"
    )
    assert parse_state(text).temperatures_celsius == {
        "acpitz": 27.8,
        "thermal_zone1": 29.8,
        "thermal_zone2": -1.0,
    }


def test_a_battery() -> None:
    text = f"{BATTERY}/capacity:64\n{BATTERY}/status:Charging\n{BATTERY}/temp:305\n"
    assert parse_state(text) == DeviceState(battery_percent=64, charging=True, battery_celsius=30.5)


def test_nothing() -> None:
    assert parse_state("sh: grep: not found\n") == DeviceState()
