"""Frequencies and capacities of processors, from the files of Linux; all pure.

https://docs.kernel.org/admin-guide/pm/cpufreq.html: a policy holds for a cluster of processors,
which change their frequency together. Old kernels (before 4.3) have its files below each processor
only. `cpu_capacity` and `topology` are described in
https://www.kernel.org/doc/Documentation/ABI/testing/sysfs-devices-system-cpu.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping

from etdeploy.devices.base import CpuCluster

ROOT = "/sys/devices/system/cpu"
_POLICIES = ("cpufreq/policy*", "cpu[0-9]*/cpufreq")
_OF_POLICY = (
    "related_cpus",
    "scaling_governor",
    "scaling_cur_freq",
    "scaling_min_freq",
    "scaling_max_freq",
    "cpuinfo_max_freq",
    "scaling_driver",
    "energy_performance_preference",
)
_CAPACITY = "cpu_capacity"
# Linux has two names for the processors of one core; phones' kernels have the older one only.
_SIBLINGS = "topology/thread_siblings_list"
# Intel's count of heat (https://www.kernel.org/doc/Documentation/ABI/testing/
# sysfs-devices-system-cpu); that of a package is the same below each of its processors.
_THROTTLED = ("thermal_throttle/core_throttle_count", "thermal_throttle/package_throttle_count")
FILES = (
    *(f"{policy}/{name}" for policy in _POLICIES for name in _OF_POLICY),
    f"cpu[0-9]*/{_CAPACITY}",
    f"cpu[0-9]*/{_SIBLINGS}",
    *(f"cpu[0-9]*/{name}" for name in _THROTTLED),
    "online",
)
"""Which are read, below ROOT. The same policy may be in several places."""

Files = Mapping[str, str]
# Their governor `powersave` is the usual one, and no mode that saves power.
_GOVERNED_BY_HARDWARE = ("intel_pstate", "amd-pstate-epp", "amd_pstate_epp")


def parse_clusters(text: str) -> tuple[CpuCluster, ...]:
    """Reads `path:content` lines, as `grep -H . FILES` prints them.

    What is missing from them could not be read on the device, and is None.
    """
    files = _below_root(text)
    found = {cluster.cpus: cluster for cluster in _policies(files) if cluster.cpus}
    known = {cpu for cpus in found for cpu in cpus}
    found |= {cluster.cpus: cluster for cluster in _without_policy(files, known)}
    return tuple(found[cpus] for cpus in sorted(found))


def _below_root(text: str) -> Files:
    """Content by path; what stands before the part that FILES name is dropped."""
    lines = re.findall(r"^([^:\n]+):(.*)$", text, re.MULTILINE)
    parts = (re.search(r"(?:^|/)(cpu\d+/.+|cpufreq/.+|online)$", path) for path, _ in lines)
    return {
        part[1]: content.strip()
        for part, (_, content) in zip(parts, lines, strict=True)
        if part is not None
    }


def _policies(files: Files) -> Iterator[CpuCluster]:
    policies: dict[str, dict[str, str]] = {}
    for path, content in files.items():
        folder, _, name = path.rpartition("/")
        if name in _OF_POLICY:
            policies.setdefault(folder, {})[name] = content
    for values in policies.values():
        cpus = parse_cpus(values.get("related_cpus", ""))
        if "online" in files:
            # A policy keeps its name while all of its processors are turned off.
            cpus = tuple(cpu for cpu in cpus if cpu in parse_cpus(files["online"]))
        yield CpuCluster(
            cpus=cpus,
            governor=values.get("scaling_governor") or None,
            current_khz=_number(values.get("scaling_cur_freq")),
            min_khz=_number(values.get("scaling_min_freq")),
            max_khz=_number(values.get("scaling_max_freq")),
            hardware_max_khz=_number(values.get("cpuinfo_max_freq")),
            capacity=_capacity(files, cpus[0]) if cpus else None,
            cores=_cores(files, cpus),
        )


def _without_policy(files: Files, known: Collection[int]) -> Iterator[CpuCluster]:
    """The other processors that are online, by capacity."""
    cpus = {int(match[1]) for path in files if (match := re.match(r"cpu(\d+)/", path))}
    cpus |= set(parse_cpus(files.get("online", "")))
    by_capacity: dict[int | None, list[int]] = {}
    for cpu in sorted(cpus - set(known)):
        if "online" not in files or cpu in parse_cpus(files["online"]):
            by_capacity.setdefault(_capacity(files, cpu), []).append(cpu)
    for capacity, members in by_capacity.items():
        cores = _cores(files, tuple(members))
        yield CpuCluster(cpus=tuple(members), capacity=capacity, cores=cores)


def parse_power_saving(text: str) -> bool | None:
    """Whether processors are kept at low frequencies; None where no governor is reported.

    Takes the same lines as `parse_clusters`.
    """
    files = _below_root(text)
    governed = [path for path in files if path.endswith("/scaling_governor")]
    return any(_saves(files, path.rpartition("/")[0]) for path in governed) if governed else None


def _saves(files: Files, policy: str) -> bool:
    if files[f"{policy}/scaling_governor"] != "powersave":
        return False
    if files.get(f"{policy}/scaling_driver") in _GOVERNED_BY_HARDWARE:
        return files.get(f"{policy}/energy_performance_preference") == "power"
    return True


def parse_throttle_events(text: str) -> int | None:
    """How often the hottest core, or its package, has throttled; None where it is not counted.

    Takes the same lines as `parse_clusters`.
    """
    counts = [
        _number(content) or 0
        for path, content in _below_root(text).items()
        if path.endswith(_THROTTLED)
    ]
    return max(counts) if counts else None


def _capacity(files: Files, cpu: int) -> int | None:
    return _number(files.get(f"cpu{cpu}/{_CAPACITY}"))


def _cores(files: Files, cpus: tuple[int, ...]) -> tuple[int, ...] | None:
    siblings = {cpu: parse_cpus(files.get(f"cpu{cpu}/{_SIBLINGS}", "")) for cpu in cpus}
    if not cpus or not all(siblings.values()):
        return None
    return tuple(cpu for cpu in cpus if siblings[cpu][0] == cpu)


def parse_cpus(text: str) -> tuple[int, ...]:
    """Numbers of processors: `0 1 2 3`, or `0-3,6` as most lists of the kernel are written."""
    found: set[int] = set()
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", text):
        found.update(range(int(first), int(last or first) + 1))
    return tuple(sorted(found))


def parse_usable_cpus(status: str) -> tuple[int, ...] | None:
    """The processors that a process may run on, from the text of its /proc/PID/status."""
    found = re.search(r"^Cpus_allowed_list:\s*(\S+)", status, re.MULTILINE)
    return parse_cpus(found[1]) if found else None


def _number(text: str | None) -> int | None:
    """`scaling_cur_freq` is `<unknown>` where the hardware does not report it."""
    return int(text) if text and text.isdigit() else None
