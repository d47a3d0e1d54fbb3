"""Classes of devices that share what goes to them, and what stands for them."""

from __future__ import annotations

from typing import Any

import pytest

from etdeploy.devices.base import Capabilities, Device, DeviceFacts
from etdeploy.farm.model import AvailableDevice
from etdeploy.farm.work.prepare import PlaceholderDevice, group_by_class
from tests.support.parcels import make_offer


def phone(serial: str, soc: str | None, **can: Any) -> AvailableDevice:
    name = f"android:{serial}"
    facts = DeviceFacts(name=name, kind="android", target="android-arm64", soc=soc, model=serial)
    return make_offer(name, facts=facts, capabilities=Capabilities(**can))


def test_devices_share_an_artifact_by_what_decides_it() -> None:
    a, b, c = phone("A", "SM8650"), phone("B", "SM8650"), phone("C", "SM8550")
    app = phone("D", "SM8650", launches=("app",))
    unknown = make_offer("android:E", facts=DeviceFacts(name="E", kind="android", target=""))
    found = group_by_class({"one": [a, b, c, app, unknown], "two": [c]})
    assert [(label, [o.name for o in offers]) for (label, _), offers in found.items()] == [
        ("one", ["android:A", "android:B"]),
        ("one", ["android:C"]),
        ("one", ["android:D"]),
        ("two", ["android:C"]),
    ]


def test_a_stand_in_says_what_the_device_said_and_does_nothing() -> None:
    offer = phone("A", "SM8650")
    device: Device = PlaceholderDevice(offer)
    assert device.facts() == offer.facts
    assert device.capabilities == offer.capabilities
    assert device.name == device.identity == "android-arm64 SM8650"
    for act in (device.state, device.end_leftovers, device.clean):
        with pytest.raises(RuntimeError, match="not here"):
            act()
    with pytest.raises(RuntimeError, match="not here"):
        device.push(None)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="not here"):
        device.open_run(None, "x")  # type: ignore[arg-type]
    device.close()
