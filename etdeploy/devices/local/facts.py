"""Facts and state of this machine."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from etdeploy.core.files.basic import read_text
from etdeploy.devices import clusters, sysfs
from etdeploy.devices.base import DeviceState
from etdeploy.devices.sysfs import linux_state

_SYS = Path("/sys")
_PROC = Path("/proc")


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


def free_storage_bytes(folder: Path) -> int | None:
    """Room where a folder is, or will be made."""
    there = next((path for path in (folder, *folder.parents) if path.is_dir()), Path("/"))
    try:
        return shutil.disk_usage(there).free
    except OSError:
        return None


def oom_kills(vmstat: Path = Path("/proc/vmstat")) -> int | None:
    """How many processes Linux has killed since it started because memory ran out."""
    found = re.search(r"^oom_kill (\d+)$", read_text(vmstat), re.MULTILINE)
    return int(found[1]) if found else None


def local_state(sys_folder: Path = _SYS, proc_folder: Path = _PROC) -> DeviceState:
    """What Linux says of itself in /sys and /proc, or psutil on another system."""
    if sys.platform != "linux":
        return _state_of_psutil()
    return linux_state(
        _contents(sys_folder, sysfs.FILES),
        _contents(sys_folder / "devices/system/cpu", clusters.FILES),
        read_text(proc_folder / "meminfo"),
        read_text(proc_folder / "loadavg"),
        read_text(proc_folder / "self/status"),
    )


def _state_of_psutil() -> DeviceState:
    import psutil

    battery = psutil.sensors_battery()
    return DeviceState(
        battery_percent=None if battery is None else round(battery.percent),
        charging=None if battery is None else battery.power_plugged,
        load_average=os.getloadavg()[0],
        available_memory_bytes=psutil.virtual_memory().available,
    )


def _contents(folder: Path, patterns: Sequence[str]) -> str:
    """`path:content` lines, as grep prints them on a device."""
    paths = (path for pattern in patterns for path in sorted(folder.glob(pattern)))
    return "\n".join(f"{path}:{read_text(path).strip()}" for path in paths)
