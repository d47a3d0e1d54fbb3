"""Farms and devices for tests of the farm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from etdeploy.devices.base import DeviceFacts
from etdeploy.farm.model import AvailableDevice
from etdeploy.farm.spec.conditions import parse_conditions
from etdeploy.farm.spec.model import DeviceGroup, Farm

GB = 1_000_000_000


def phone(serial: str, **changes: Any) -> AvailableDevice:
    """A phone; `changes` are facts, or keys of the offer."""
    name = f"android:{serial}"
    facts = DeviceFacts(
        name=name, kind="android", target="android-arm64", serial=serial, model="Pixel 8",
        manufacturer="Google", soc="Tensor G3", abi="arm64-v8a", os="Android 14", cpu_count=9,
        memory_bytes=8 * GB,
    )  # fmt: skip
    own = {key: value for key, value in changes.items() if key in AvailableDevice.model_fields}
    rest = {key: value for key, value in changes.items() if key not in own}
    values = {"identity": f"android-{serial}", "name": name, "host": "shelf", **own}
    return AvailableDevice(facts=facts.model_copy(update=rest), **values)


def group(take: int | None = None, **properties: str) -> DeviceGroup:
    """A group with properties as farm.yaml has them."""
    found = [c for key, text in properties.items() for c in parse_conditions(key, text)]
    return DeviceGroup(conditions=tuple(found), take=take)


def farm(
    groups: dict[str, DeviceGroup], recipes: tuple[str, ...] = ("mlp",), **changes: Any
) -> Farm:
    """A farm with every recipe on every group."""
    pairs = tuple((label, name) for label in recipes for name in groups)
    return Farm(**{"name": "f", "groups": groups, "pairs": pairs, "results": Path("/r"), **changes})
