"""Governor and frequencies of processors, from the files of Linux' cpufreq; all pure.

https://docs.kernel.org/admin-guide/pm/cpufreq.html: a policy holds for a cluster of cores, which
change their frequency together. Old kernels (before 4.3) have the files below each core only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from etdeploy.devices.base import CpuCluster

ROOT = "/sys/devices/system/cpu"
POLICIES = ("cpufreq/policy*", "cpu[0-9]*/cpufreq")
"""Where the files of a policy are, below ROOT; the same policy may be in several places."""
FILES = (
    "related_cpus",
    "scaling_governor",
    "scaling_cur_freq",
    "scaling_min_freq",
    "scaling_max_freq",
)


def parse_clusters(text: str) -> tuple[CpuCluster, ...]:
    """Reads `path:content` lines, as `grep -H . FILES` prints them.

    What is missing from them could not be read on the device, and is None.
    """
    policies: dict[str, dict[str, str]] = {}
    for path, content in re.findall(r"^([^:\n]+):(.*)$", text, re.MULTILINE):
        folder, _, name = path.rpartition("/")
        policies.setdefault(folder, {})[name] = content.strip()
    found = (_cluster(values) for values in policies.values())
    by_cpus = {cluster.cpus: cluster for cluster in found if cluster.cpus}
    return tuple(by_cpus[cpus] for cpus in sorted(by_cpus))


def _cluster(values: Mapping[str, str]) -> CpuCluster:
    return CpuCluster(
        cpus=_cpus(values.get("related_cpus", "")),
        governor=values.get("scaling_governor") or None,
        current_khz=_khz(values.get("scaling_cur_freq")),
        min_khz=_khz(values.get("scaling_min_freq")),
        max_khz=_khz(values.get("scaling_max_freq")),
    )


def _cpus(text: str) -> tuple[int, ...]:
    """`0 1 2 3`, or `0-3,6` as other lists of the kernel are written."""
    found: set[int] = set()
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", text):
        found.update(range(int(first), int(last or first) + 1))
    return tuple(sorted(found))


def _khz(text: str | None) -> int | None:
    """`scaling_cur_freq` is `<unknown>` where the hardware does not report it."""
    return int(text) if text and text.isdigit() else None
