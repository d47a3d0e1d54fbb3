"""Battery and temperatures from /sys."""

from __future__ import annotations

import pytest

from etdeploy.devices.base import DeviceState
from etdeploy.devices.sysfs import parse_state

THERMAL = "class/thermal/thermal_zone"
BATTERY = "/sys/class/power_supply/BAT0"


def test_zones_of_one_name_are_told_apart() -> None:
    text = (
        f"{THERMAL}0/type:acpitz\n{THERMAL}0/temp:27800\n{THERMAL}1/type:acpitz\n"
        f"{THERMAL}1/temp:29800\n{THERMAL}2/temp:-1000\n{THERMAL}3/type:gone\n{THERMAL}4/temp:\n"
        f"{THERMAL}5/type:off\n{THERMAL}5/temp:-274000\n"
    )
    assert parse_state(text).temperatures_celsius == {
        "acpitz": 27.8,
        "thermal_zone1": 29.8,
        "thermal_zone2": -1.0,
    }


def test_a_battery() -> None:
    text = f"{BATTERY}/capacity:64\n{BATTERY}/status:Charging\n{BATTERY}/temp:305\n"
    assert parse_state(f"{text}{BATTERY}/voltage_now:3912000\n") == DeviceState(
        battery_percent=64, charging=True, battery_celsius=30.5, battery_volts=3.912
    )


def supply(name: str, **files: str) -> str:
    folder = f"/sys/class/power_supply/{name}"
    return "".join(f"{folder}/{file}:{content}\n" for file, content in files.items())


def test_some_laptops_report_power_in_place_of_current() -> None:
    text = supply("BAT0", type="Battery", status="Charging", power_now="24000000")
    assert parse_state(text + supply("BAT0", voltage_now="12000000")).battery_milliamps == -2000.0
    assert parse_state(text).battery_milliamps is None


def test_only_the_devices_own_battery_counts() -> None:
    adapter = supply("AC", type="Mains", online="1")
    mouse = supply("hid-1-battery", type="Battery", scope="Device", capacity="5")
    assert parse_state(adapter + mouse) == DeviceState()
    phone = supply("qcom-battery", type="Battery", capacity="80")
    assert parse_state(adapter + mouse + phone).battery_percent == 80


@pytest.mark.parametrize(
    ("bits", "status"),
    [("0", "none"), ("50000", "none"), ("50005", "throttled"), ("1", "under-voltage"), ("?", None)],
)
def test_a_raspberry_pi_says_that_it_throttles(bits: str, status: str | None) -> None:
    text = f"devices/platform/soc/soc:firmware/get_throttled:{bits}\n"
    assert parse_state(text).thermal_status == status


def test_a_profile_that_saves_power() -> None:
    assert parse_state("firmware/acpi/platform_profile:low-power\n").power_saving is True
    assert parse_state("firmware/acpi/platform_profile:balanced\n").power_saving is False


@pytest.mark.parametrize(
    ("text", "quota"),
    [
        ("/sys/fs/cgroup/cpu.max:150000 100000\n", 1.5),
        ("/sys/fs/cgroup/cpu.max:max 100000\n", None),
        ("fs/cgroup/cpu/cpu.cfs_quota_us:400000\nfs/cgroup/cpu/cpu.cfs_period_us:100000\n", 4.0),
        ("fs/cgroup/cpu/cpu.cfs_quota_us:-1\nfs/cgroup/cpu/cpu.cfs_period_us:100000\n", None),
        ("fs/cgroup/cpu/cpu.cfs_quota_us:400000\n", None),
        ("fs/cgroup/cpu.max:100000\n", None),
    ],
)
def test_the_time_that_a_container_may_use(text: str, quota: float | None) -> None:
    assert parse_state(text).cpu_quota == quota


def test_processors_without_a_thermal_zone_have_a_sensor_of_their_own() -> None:
    text = (
        "class/hwmon/hwmon0/name:nvme\nclass/hwmon/hwmon0/temp1_input:40000\n"
        "class/hwmon/hwmon3/name:k10temp\nclass/hwmon/hwmon3/temp1_input:62125\n"
    )
    assert parse_state(text).temperatures_celsius == {"k10temp": 62.125}


def test_nothing() -> None:
    assert parse_state("sh: grep: not found\n") == DeviceState()
