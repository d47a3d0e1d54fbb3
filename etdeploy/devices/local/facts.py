"""Facts and state of this machine."""

from __future__ import annotations

import os
import platform
import re
import sys
from pathlib import Path

from etdeploy.core.files.basic import read_text
from etdeploy.devices import clusters
from etdeploy.devices.base import CpuCluster, DeviceState

_SYS = Path("/sys")


def cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str | None:
    """The processor's name."""
    for line in read_text(cpuinfo).splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "Hardware", "Model"):
            return value.strip()
    return platform.processor() or None


def os_name() -> str:
    """The system with its version."""
    if sys.platform == "darwin":
        return f"macOS {platform.mac_ver()[0]}"
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return f"{platform.system()} {platform.release()}"


def memory_bytes() -> int | None:
    """The size of the main memory."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None


def oom_kills(vmstat: Path = Path("/proc/vmstat")) -> int | None:
    """How many processes Linux has killed since it started because memory ran out."""
    found = re.search(r"^oom_kill (\d+)$", read_text(vmstat), re.MULTILINE)
    return int(found[1]) if found else None


def local_state(sys_folder: Path = _SYS) -> DeviceState:
    """Battery, temperatures and load as Linux gives them under /sys; None where it does not."""
    battery = next(iter(sorted((sys_folder / "class/power_supply").glob("BAT*"))), None)
    status = read_text(battery / "status").strip() if battery else ""
    return DeviceState(
        battery_percent=_number(battery / "capacity") if battery else None,
        battery_celsius=_tenths(battery / "temp") if battery else None,
        charging=status in ("Charging", "Full") if status else None,
        temperatures_celsius=_temperatures(sys_folder),
        load_average=os.getloadavg()[0],
        clusters=_clusters(sys_folder / "devices/system/cpu"),
    )


def _clusters(folder: Path) -> tuple[CpuCluster, ...]:
    lines = (
        f"{path}:{read_text(path).strip()}"
        for policy in clusters.POLICIES
        for name in clusters.FILES
        for path in sorted(folder.glob(f"{policy}/{name}"))
    )
    return clusters.parse_clusters("\n".join(lines))


def _temperatures(sys_folder: Path) -> dict[str, float]:
    zones = sorted((sys_folder / "class/thermal").glob("thermal_zone*"))
    found = {}
    for zone in zones:
        milli = _number(zone / "temp")
        if milli is not None:
            name = read_text(zone / "type").strip() or zone.name
            found[name if name not in found else zone.name] = milli / 1000
    return found


def _tenths(path: Path) -> float | None:
    value = _number(path)
    return None if value is None else value / 10


def _number(path: Path) -> int | None:
    try:
        return int(read_text(path))
    except ValueError:
        return None
