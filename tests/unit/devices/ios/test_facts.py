"""What an iPhone says of itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from etdeploy.devices.base import DeviceState
from etdeploy.devices.ios.device import (
    battery_state,
    parse_object,
    phone_facts,
    system_version,
)

DATA = Path(__file__).parents[3] / "data" / "ios"


def test_facts_of_lockdown() -> None:
    values = parse_object((DATA / "lockdown-info.json").read_text())
    facts = phone_facts(values, "00008130-001A2B3C4D5E6F70", "USB")
    assert (facts.name, facts.kind, facts.target) == (
        "ios:00008130-001A2B3C4D5E6F70", "ios", "ios-arm64",
    )  # fmt: skip
    assert facts.model == "iPhone 15 Pro (iPhone16,1)"
    assert facts.soc == "t8130"
    assert facts.os == "iOS 18.1 (22B83)"
    assert facts.fingerprint == "22B83"
    assert facts.memory_bytes == 8 * 2**30
    assert facts.cpu_count == 6
    assert facts.connection == "USB"
    assert system_version(values) == (18, 1)


def test_an_unknown_model_has_its_product_type_and_no_guesses() -> None:
    facts = phone_facts({"ProductType": "iPhone99,1", "DeviceClass": "iPhone"}, "U", "Network")
    assert facts.model == "iPhone99,1"
    assert (facts.memory_bytes, facts.cpu_count, facts.os) == (None, None, None)
    assert facts.connection == "Wi-Fi"
    assert system_version({}) is None


def test_an_ipad_has_its_own_system() -> None:
    values = {"ProductVersion": "17.4.1", "DeviceClass": "iPad", "BuildVersion": "21E236"}
    assert phone_facts(values, "U", None).os == "iPadOS 17.4.1 (21E236)"
    assert system_version(values) == (17, 4, 1)


def test_a_battery() -> None:
    registry = parse_object((DATA / "battery.json").read_text())
    assert battery_state(registry) == DeviceState(
        battery_percent=81,
        battery_celsius=30.49,
        charging=True,
        battery_milliamps=-412.0,
        battery_volts=4.211,
    )


@pytest.mark.parametrize("raw", [-350, (1 << 64) - 350])
def test_a_current_out_of_the_battery_is_positive(raw: int) -> None:
    assert battery_state({"InstantAmperage": raw}).battery_milliamps == 350.0


@pytest.mark.parametrize(
    "registry",
    [{}, {"CurrentCapacity": 900, "MaxCapacity": 1}, {"Temperature": 0, "MaxCapacity": 0},
     {"IsCharging": "yes", "CurrentCapacity": True}],
)  # fmt: skip
def test_what_is_not_told_is_none(registry: dict[str, object]) -> None:
    assert battery_state(registry) == DeviceState()
