"""The state of a machine with Linux, from the texts of its files; all pure."""

from __future__ import annotations

from etdeploy.devices import clusters, sysfs
from etdeploy.devices.base import DeviceState
from etdeploy.devices.shell import parse_load, parse_meminfo


def linux_state(
    sys_files: str, cpu_files: str, meminfo: str, loadavg: str, status: str
) -> DeviceState:
    """The state of this machine or a board.

    Args:
        sys_files: `path:content` lines of `sysfs.FILES`.
        cpu_files: Those of `clusters.FILES`.
        meminfo: The text of /proc/meminfo.
        loadavg: The text of /proc/loadavg.
        status: The text of /proc/self/status.
    """
    found = sysfs.parse_state(sys_files)
    saving = (found.power_saving, clusters.parse_power_saving(cpu_files))
    return found.model_copy(
        update={
            "load_average": parse_load(loadavg),
            "clusters": clusters.parse_clusters(cpu_files),
            "available_memory_bytes": parse_meminfo(meminfo, "MemAvailable"),
            "power_saving": None if saving == (None, None) else any(saving),
            "usable_cpus": clusters.parse_usable_cpus(status),
            "throttle_events": clusters.parse_throttle_events(cpu_files),
        }
    )
