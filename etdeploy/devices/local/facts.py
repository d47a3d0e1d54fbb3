"""Facts and state of this machine."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from etdeploy.core.files.basic import read_text
from etdeploy.devices import clusters, sysfs
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
    return sysfs.parse_state(_contents(sys_folder, sysfs.FILES)).model_copy(
        update={
            "load_average": os.getloadavg()[0],
            "clusters": _clusters(sys_folder / "devices/system/cpu"),
            "usable_cpus": clusters.parse_usable_cpus(read_text(Path("/proc/self/status"))),
        }
    )


def _clusters(folder: Path) -> tuple[CpuCluster, ...]:
    return clusters.parse_clusters(_contents(folder, clusters.FILES))


def _contents(folder: Path, patterns: Sequence[str]) -> str:
    """`path:content` lines, as grep prints them on a device."""
    paths = (path for pattern in patterns for path in sorted(folder.glob(pattern)))
    return "\n".join(f"{path}:{read_text(path).strip()}" for path in paths)
