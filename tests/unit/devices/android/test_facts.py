"""Outputs of Android's own tools, as devices print them."""

from __future__ import annotations

from pathlib import Path

import pytest

from etdeploy.backends.registry import known_socs
from etdeploy.devices.android.facts import (
    android_facts,
    android_identity,
    android_state,
    parse_getprop,
    parse_power_saving,
    parse_screen,
    parse_temperatures,
    parse_thermal_status,
)
from etdeploy.targets.ndk import soc_name

DATA = Path(__file__).parents[3] / "data" / "android"


def facts_output(properties: str) -> str:
    return (
        f"{(DATA / properties).read_text()}"
        "#meminfo\nMemTotal:       11534336 kB\nMemFree:          312345 kB\n"
        "#nproc\n8\n#boot_id\n5d1c2f6e-0b4a-4f0e-9d3c-2f1a0c9b8e7d\n"
    )


def test_facts_of_a_phone() -> None:
    facts = android_facts("android:A1", "USB", facts_output("getprop.txt"))
    assert facts
    assert (facts.name, facts.kind, facts.target) == ("android:A1", "android", "android-arm64")
    assert (facts.manufacturer, facts.model, facts.soc) == ("example", "EX-S928B", "SM8650")
    assert (facts.os, facts.abi, facts.cpu_count) == ("Android 14 (API 34)", "arm64-v8a", 8)
    assert facts.memory_bytes == 11534336 * 1024
    assert str(facts.fingerprint).startswith("example/e3q")
    assert facts.serial == "R5CX1234ABC"


def test_facts_of_a_device_that_tells_little() -> None:
    facts = android_facts("android:A1", "TCP", "[ro.product.cpu.abi]: [x86_64]\n")
    assert facts
    assert facts.target == "android-x86_64"
    assert (facts.model, facts.os, facts.soc, facts.cpu_count) == (None, None, None, None)


def test_an_abi_without_a_target_gives_no_facts() -> None:
    assert android_facts("android:A1", "TCP", "[ro.product.cpu.abi]: [armeabi-v7a]\n") is None


def test_properties_may_be_empty_or_go_over_lines() -> None:
    properties = parse_getprop((DATA / "getprop.txt").read_text())
    assert properties["sys.multi.line"] == "first\nsecond"
    assert properties["vendor.empty"] == ""


def test_emulators_share_a_serial_number_and_are_told_apart_by_their_boot() -> None:
    identity = android_identity("emulator-5554", facts_output("getprop-emulator.txt"))
    assert identity == "android-5d1c2f6e-0b4a-4f0e-9d3c-2f1a0c9b8e7d"
    facts = android_facts("android:A1", "TCP", facts_output("getprop-emulator.txt"))
    assert facts
    assert facts.serial is None


@pytest.mark.parametrize("port", ["usb:1-2", "usb-1.2"])
def test_phones_with_one_serial_number_are_told_apart_by_their_boot(port: str) -> None:
    output = facts_output("getprop.txt")
    assert android_identity(port, output) == "android-5d1c2f6e-0b4a-4f0e-9d3c-2f1a0c9b8e7d"
    facts = android_facts(f"android:{port}", "adb server", output)
    assert facts
    # What would pass for one unit in a comparison is not recorded.
    assert facts.serial is None


def test_state_of_a_phone() -> None:
    battery = (DATA / "dumpsys-battery.txt").read_text()
    thermal = (DATA / "dumpsys-thermalservice.txt").read_text()
    state = android_state(
        f"#battery\n{battery}#thermal\n{thermal}#loadavg\n3.14 2.71 1.41 2/99 7\n"
    )
    assert (state.battery_percent, state.battery_celsius, state.charging) == (87, 28.7, True)
    assert (state.thermal_status, state.load_average) == ("light", 3.14)
    # The sensors of now, not the cached ones; without those that are not there.
    assert state.temperatures_celsius == {
        "CPU0": 41.2,
        "CPU1": 40.1,
        "GPU0": 38.6,
        "battery": 28.7,
        "skin": 36.4,
    }


@pytest.mark.parametrize(
    ("text", "on"),
    [
        ("mWakefulness=Awake\nDisplay Power: state=OFF\n", False),  # to Android 13
        ("  mWakefulness=Asleep\n", False),
        ("  mWakefulness=Dozing\n", False),
        ("  mWakefulness=Dreaming\nmWakefulness=0\n", True),
        ("Display Power: state=DOZE_SUSPEND\n", False),
        ("Can't find service: power\n", None),
    ],
)
def test_the_screen(text: str, on: bool | None) -> None:
    assert parse_screen(text) is on


@pytest.mark.parametrize(
    ("text", "saving"),
    [
        ("Battery saver state machine:\n  Enabled=true\n    full=true\n", True),
        ("Battery saver state machine:\n  Enabled=false\n", False),
        ("  mLowPowerModeEnabled=true\n  mBatteryLevelLow=false\n", True),  # to Android 8
        ("  mLowPowerModeEnabled=false\n", False),
        ("Can't find service: power\n", None),
    ],
)
def test_the_battery_saver(text: str, saving: bool | None) -> None:
    assert parse_power_saving(text) is saving


@pytest.mark.parametrize(
    ("output", "current_ma"),
    [
        # /sys, where adb's user may read it.
        (
            "#battery\n  status: 3\n#sys\nclass/power_supply/battery/type:Battery\n"
            "class/power_supply/battery/status:Discharging\n"
            "class/power_supply/battery/current_now:-498000\n",
            498.0,
        ),
        ("#battery\n  status: 3\n  voltage: 4063\n  current now: -412\n", 412.0),
        ("#battery\n  status: 2\n  current now: 321\n", -321.0),
        ("#battery\n  status: 2\n  current now: -427943\n", -427.943),
        ("#battery\n  status: 3\n#current\n-900000\n", 900.0),
        ("#battery\n  status: 3\n#current\nUnknown get option: current_now\n", None),
        ("#battery\n  status: 5\n  current now: 12\n", None),
    ],
)
def test_the_current_out_of_the_battery(output: str, current_ma: float | None) -> None:
    assert android_state(output).battery_milliamps == current_ma


def test_thermal_zones_serve_where_the_service_tells_nothing() -> None:
    zones = "class/thermal/thermal_zone0/type:cpu-0-0\nclass/thermal/thermal_zone0/temp:41500\n"
    output = f"#thermal\nCan't find service: thermalservice\n#sys\n{zones}"
    assert android_state(output).temperatures_celsius == {"cpu-0-0": 41.5}


def test_cached_temperatures_serve_where_there_are_no_others() -> None:
    text = (DATA / "dumpsys-thermalservice-cached.txt").read_text()
    assert parse_temperatures(text) == {"battery": 24.0}
    assert parse_thermal_status(text) == "none"
    assert parse_thermal_status("Thermal Status: 9\n") is None


@pytest.mark.parametrize(
    ("model", "platform", "expected"),
    [
        ("SM8650", None, "SM8650"),
        ("SM8750P", None, "SM8750"),
        ("sm8550-AC", "kalama", "SM8550"),
        ("SXR2230P", None, "SXR2230P"),
        ("Tensor G4", "zumapro", "Tensor G4"),
        ("unknown", "pineapple", "SM8650"),
        (None, "lahaina", "SM8350"),
        ("", "mt6983", "mt6983"),
        ("unknown", "", None),
    ],
)
def test_names_of_chips(model: str | None, platform: str | None, expected: str | None) -> None:
    assert soc_name(model, platform, known_socs()) == expected
