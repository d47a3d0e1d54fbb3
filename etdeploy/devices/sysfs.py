"""Battery and temperatures, from the files of Linux' /sys; all pure.

https://docs.kernel.org/driver-api/thermal/sysfs-api.html, in thousandths of a degree, and
https://docs.kernel.org/power/power_supply_class.html, in tenths.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from etdeploy.devices.base import DeviceState

FILES = (
    "class/thermal/thermal_zone*/type",
    "class/thermal/thermal_zone*/temp",
    "class/power_supply/BAT*/capacity",
    "class/power_supply/BAT*/status",
    "class/power_supply/BAT*/temp",
)
"""Which are read, below /sys."""


def parse_state(text: str) -> DeviceState:
    """Reads `path:content` lines, as `grep -H . FILES` prints them.

    What is missing from them could not be read on the device, and is None.
    """
    files = {path: content.strip() for path, content in re.findall(r"^([^:\n]+):(.*)$", text, re.M)}
    batteries = sorted({path.rpartition("/")[0] for path in files if "/power_supply/" in path})
    battery = batteries[0] if batteries else ""
    status = files.get(f"{battery}/status", "")
    celsius = _number(files.get(f"{battery}/temp"))
    return DeviceState(
        battery_percent=_number(files.get(f"{battery}/capacity")),
        battery_celsius=None if celsius is None else celsius / 10,
        charging=status in ("Charging", "Full") if status else None,
        temperatures_celsius=_temperatures(files),
    )


def _temperatures(files: Mapping[str, str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for path in sorted(files):
        milli = _number(files[path]) if path.endswith("/temp") and "/thermal/" in path else None
        if milli is not None:
            zone = path.split("/")[-2]
            name = files.get(path.removesuffix("temp") + "type") or zone
            found[name if name not in found else zone] = milli / 1000
    return found


def _number(text: str | None) -> int | None:
    return int(text) if text and re.fullmatch(r"-?\d+", text) else None
