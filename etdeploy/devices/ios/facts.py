"""What an iPhone says of itself, read from pymobiledevice3's answers; all pure."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from etdeploy.devices.base import DeviceFacts, DeviceState
from etdeploy.devices.battery import volts

OLDEST_SYSTEM = (17, 0)
"""ExecuTorch's Swift package and the developer services that start apps need it."""

TARGET = "ios-arm64"


class UnreadableError(Exception):
    """An answer is not what pymobiledevice3 is known to print."""


def parse_object(text: str) -> dict[str, Any]:
    """An answer that is one JSON object.

    Raises:
        UnreadableError: It is not.
    """
    try:
        found = json.loads(text)
    except ValueError as error:
        raise UnreadableError(f"not JSON: {text[:80]!r}") from error
    if not isinstance(found, dict):
        raise UnreadableError(f"no object: {text[:80]!r}")
    return found


def phone_facts(values: dict[str, Any], udid: str, connection: str | None) -> DeviceFacts:
    """Facts from the values of lockdownd (`lockdown info`).

    Args:
        values: By lockdownd's names.
        udid: Of the phone.
        connection: USB or Network, as usbmuxd says it.
    """
    product = _text(values, "ProductType") or ""
    model = known_model(product)
    named = f"{model.name} ({product})" if model else product or None
    return DeviceFacts(
        name=f"ios:{udid}",
        kind="ios",
        target=TARGET,
        serial=udid,
        model=named,
        manufacturer="Apple",
        soc=_text(values, "HardwarePlatform"),
        abi="arm64-v8a",
        os=_system(values),
        fingerprint=_text(values, "BuildVersion"),
        cpu_count=CPU_COUNT if model else None,
        memory_bytes=model.memory_bytes if model else None,
        connection={"USB": "USB", "Network": "Wi-Fi"}.get(connection or "", connection),
    )


def system_version(values: dict[str, Any]) -> tuple[int, ...] | None:
    """The version of iOS; None where it is not reported."""
    found = re.match(r"\d+(\.\d+)*", _text(values, "ProductVersion") or "")
    return tuple(map(int, found[0].split("."))) if found else None


def battery_state(registry: dict[str, Any]) -> DeviceState:
    """State from the registry entry of the battery (`diagnostics battery single`).

    Temperature is in hundredths of a degree, current in mA (negative while discharging, at times as
    an unsigned number of 64 bits), voltage in mV.
    """
    capacity, most = _number(registry, "CurrentCapacity"), _number(registry, "MaxCapacity")
    percent = round(100 * capacity / most) if capacity is not None and most else None
    centi = _number(registry, "Temperature")
    current = _signed(_number(registry, "InstantAmperage"))
    charging = registry.get("IsCharging")
    return DeviceState(
        battery_percent=percent if percent is not None and 0 <= percent <= 100 else None,
        battery_celsius=centi / 100 if centi is not None and 0 < centi < 10_000 else None,
        charging=charging if isinstance(charging, bool) else None,
        battery_milliamps=None if current is None else float(-current),
        battery_volts=volts(_number(registry, "Voltage")),
    )


def _system(values: dict[str, Any]) -> str | None:
    version, build = _text(values, "ProductVersion"), _text(values, "BuildVersion")
    if version is None:
        return None
    name = "iPadOS" if _text(values, "DeviceClass") == "iPad" else "iOS"
    return f"{name} {version}" + (f" ({build})" if build else "")


def _text(values: dict[str, Any], key: str) -> str | None:
    found = values.get(key)
    return found if isinstance(found, str) and found else None


def _number(values: dict[str, Any], key: str) -> int | None:
    found = values.get(key)
    return found if isinstance(found, int) and not isinstance(found, bool) else None


def _signed(value: int | None) -> int | None:
    return value - (1 << 64) if value is not None and value >= 1 << 63 else value


_GIB = 1 << 30
CPU_COUNT = 6
"""Of every model in this table: two fast cores and four efficient ones, from A12 to A19."""


@dataclass(frozen=True)
class Model:
    """A model: its name in shops, and the size of its memory.

    Apple does not publish memory; these are the sizes of the chips that teardowns found.
    """

    name: str
    memory_bytes: int


def known_model(product_type: str) -> Model | None:
    """The model with a product type, such as `iPhone16,1`; None for one that is not listed."""
    found = _MODELS.get(product_type)
    return Model(found[0], found[1] * _GIB) if found else None


_MODELS: dict[str, tuple[str, int]] = {
    "iPhone11,2": ("iPhone XS", 4),
    "iPhone11,4": ("iPhone XS Max", 4),
    "iPhone11,6": ("iPhone XS Max", 4),
    "iPhone11,8": ("iPhone XR", 3),
    "iPhone12,1": ("iPhone 11", 4),
    "iPhone12,3": ("iPhone 11 Pro", 4),
    "iPhone12,5": ("iPhone 11 Pro Max", 4),
    "iPhone12,8": ("iPhone SE (2nd generation)", 3),
    "iPhone13,1": ("iPhone 12 mini", 4),
    "iPhone13,2": ("iPhone 12", 4),
    "iPhone13,3": ("iPhone 12 Pro", 6),
    "iPhone13,4": ("iPhone 12 Pro Max", 6),
    "iPhone14,2": ("iPhone 13 Pro", 6),
    "iPhone14,3": ("iPhone 13 Pro Max", 6),
    "iPhone14,4": ("iPhone 13 mini", 4),
    "iPhone14,5": ("iPhone 13", 4),
    "iPhone14,6": ("iPhone SE (3rd generation)", 4),
    "iPhone14,7": ("iPhone 14", 6),
    "iPhone14,8": ("iPhone 14 Plus", 6),
    "iPhone15,2": ("iPhone 14 Pro", 6),
    "iPhone15,3": ("iPhone 14 Pro Max", 6),
    "iPhone15,4": ("iPhone 15", 6),
    "iPhone15,5": ("iPhone 15 Plus", 6),
    "iPhone16,1": ("iPhone 15 Pro", 8),
    "iPhone16,2": ("iPhone 15 Pro Max", 8),
    "iPhone17,1": ("iPhone 16 Pro", 8),
    "iPhone17,2": ("iPhone 16 Pro Max", 8),
    "iPhone17,3": ("iPhone 16", 8),
    "iPhone17,4": ("iPhone 16 Plus", 8),
    "iPhone17,5": ("iPhone 16e", 8),
}
