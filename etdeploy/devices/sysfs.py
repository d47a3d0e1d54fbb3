"""Battery, temperatures, power profile and processors, from the files of Linux' /sys; all pure.

https://docs.kernel.org/driver-api/thermal/sysfs-api.html, in thousandths of a degree, and
https://docs.kernel.org/power/power_supply_class.html, in tenths.

https://docs.kernel.org/admin-guide/pm/cpufreq.html: a policy holds for a cluster of processors,
which change their frequency together. Old kernels (before 4.3) have its files below each processor
only. `cpu_capacity` and `topology` are described in
https://www.kernel.org/doc/Documentation/ABI/testing/sysfs-devices-system-cpu.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping

from etdeploy.devices.base import CpuCluster, DeviceState, TimedState
from etdeploy.devices.shell import parse_load, parse_meminfo

_OF_BATTERY = ("type", "scope", "capacity", "status", "temp")
_POWER = ("current_now", "voltage_now", "power_now")
# Of the Raspberry Pi's firmware, which neither temperatures nor frequencies show.
_FIRMWARE = "devices/platform/soc/soc:firmware/get_throttled"
THERMAL_FILES = ("class/thermal/thermal_zone*/type", "class/thermal/thermal_zone*/temp")
BATTERY_FILES = tuple(f"class/power_supply/*/{name}" for name in (*_OF_BATTERY, *_POWER))
# What a container may use, of version 2 of control groups and of version 1
# (https://docs.kernel.org/admin-guide/cgroup-v2.html#cpu-interface-files).
_QUOTA = ("cpu.max", "cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")
QUOTA_FILES = tuple(f"fs/cgroup/{name}" for name in _QUOTA)
# AMD's processors, and Intel's without a thermal zone (https://docs.kernel.org/hwmon/k10temp.html).
HWMON_FILES = ("class/hwmon/hwmon*/name", "class/hwmon/hwmon*/temp1_input")
_HWMON_OF_PROCESSORS = ("k10temp", "zenpower", "coretemp")
FILES = (
    *THERMAL_FILES,
    *HWMON_FILES,
    *BATTERY_FILES,
    *QUOTA_FILES,
    "firmware/acpi/platform_profile",
    _FIRMWARE,
)
"""Which are read, below /sys."""

# Bits (https://www.raspberrypi.com/documentation/computers/os.html#get_throttled). The frequency is
# capped, throttled, at its soft limit of temperature; those from 16 on say that it was so before.
_UNDER_VOLTAGE = 0x1
_CAPPED = 0xE
_CHARGING = {"Charging": True, "Discharging": False}


def parse_state(text: str) -> DeviceState:
    """Reads `path:content` lines, as `grep -H . FILES` prints them.

    What is missing from them could not be read on the device, and is None.
    """
    # The firmware's path has a colon of its own.
    files = {
        path: content.strip()
        for path, content in re.findall(r"^((?:[^:\n]|:firmware)+):(.*)$", text, re.M)
    }
    supply = _battery(files)
    status = supply.get("status")
    celsius = _number(supply.get("temp"))
    profile = _ending(files, "platform_profile")
    return DeviceState(
        battery_percent=_number(supply.get("capacity")),
        battery_celsius=None if celsius is None else celsius / 10,
        charging=status in ("Charging", "Full") if status else None,
        thermal_status=_firmware_status(_ending(files, "get_throttled")),
        temperatures_celsius=_temperatures(files) | _hwmon(files),
        battery_milliamps=_milliamps(supply),
        battery_volts=volts(_number(supply.get("voltage_now"))),
        power_saving=None if profile is None else profile == "low-power",
        cpu_quota=_quota(files),
    )


def _quota(files: Mapping[str, str]) -> float | None:
    """Quota by period, both in microseconds: `200000 100000`, or `max 100000` for no limit."""
    newer, quota, period = (_ending(files, name) for name in _QUOTA)
    given = newer.split() if newer else [quota or "", period or ""]
    quota_us, period_us = (_number(text) for text in [*given, "", ""][:2])
    if not quota_us or not period_us or quota_us < 0:
        return None
    return quota_us / period_us


def _battery(files: Mapping[str, str]) -> Mapping[str, str]:
    """The files of the device's own battery by name; those of a mouse or a pen do not count."""
    supplies: dict[str, dict[str, str]] = {}
    for path in sorted(files):
        folder, _, name = path.rpartition("/")
        if "/power_supply/" in path:
            supplies.setdefault(folder, {})[name] = files[path]
    for folder, values in supplies.items():
        is_battery = values.get("type") == "Battery" or ("type" not in values and "BAT" in folder)
        if is_battery and values.get("scope") != "Device":
            return values
    return {}


def _milliamps(supply: Mapping[str, str]) -> float | None:
    """Some laptops report the power in µW in place of the current."""
    charging = _CHARGING.get(supply.get("status", ""))
    micro_amps = _number(supply.get("current_now"))
    voltage = volts(_number(supply.get("voltage_now")))
    micro_watts = _number(supply.get("power_now"))
    if micro_amps is None and micro_watts is not None and voltage:
        micro_amps = round(micro_watts / voltage)
    return milliamps(micro_amps, charging)


def _firmware_status(text: str | None) -> str | None:
    if text is None or not re.fullmatch(r"(?:0x)?[0-9a-fA-F]+", text):
        return None
    bits = int(text, 16)
    if bits & _CAPPED:
        return "throttled"
    return "under-voltage" if bits & _UNDER_VOLTAGE else "none"


def _temperatures(files: Mapping[str, str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for path in sorted(files):
        milli = _number(files[path]) if path.endswith("/temp") and "/thermal/" in path else None
        # Some zones say -274 °C for a sensor that is off.
        if milli is not None and milli > -60_000:
            zone = path.split("/")[-2]
            name = files.get(path.removesuffix("temp") + "type") or zone
            found[name if name not in found else zone] = milli / 1000
    return found


def _hwmon(files: Mapping[str, str]) -> dict[str, float]:
    names = {path.removesuffix("/name"): text for path, text in files.items() if "/hwmon" in path}
    found: dict[str, float] = {}
    for folder, name in names.items():
        milli = _number(files.get(f"{folder}/temp1_input"))
        if name in _HWMON_OF_PROCESSORS and milli is not None:
            found.setdefault(name, milli / 1000)
    return found


def _ending(files: Mapping[str, str], name: str) -> str | None:
    return next((text for path, text in files.items() if path.endswith(f"/{name}")), None)


def _number(text: str | None) -> int | None:
    return int(text) if text and re.fullmatch(r"-?\d+", text) else None


def linux_state(
    sys_files: str, cpu_files: str, meminfo: str, loadavg: str, status: str
) -> DeviceState:
    """The state of this machine or a board."""
    found = parse_state(sys_files)
    saving = (found.power_saving, parse_power_saving(cpu_files))
    return found.model_copy(
        update={
            "load_average": parse_load(loadavg),
            "clusters": parse_clusters(cpu_files),
            "available_memory_bytes": parse_meminfo(meminfo, "MemAvailable"),
            "power_saving": None if saving == (None, None) else any(saving),
            "usable_cpus": parse_usable_cpus(status),
            "throttle_events": parse_throttle_events(cpu_files),
        }
    )


# What a phone or laptop draws at least while it runs, in mA.
_LEAST_MA = 20


def milliamps(raw: int | None, charging: bool | None) -> float | None:
    """The current out of a battery in mA, from its `current_now`; None where it cannot be told.

    Linux says µA, negative while the battery is discharged
    (https://www.kernel.org/doc/Documentation/ABI/testing/sysfs-class-power). Samsung's kernels say
    mA, and Qualcomm's old ones and Huawei's have the other sign. So the sign follows from the
    battery's status. The unit follows from the size: less than 20,000 µA would be less than a
    device draws while it runs, and 20,000 mA is more than a charger gives.
    """
    if raw is None or abs(raw) >= 2**31 - 1:  # what Android's service says for "unknown"
        return None
    is_micro = abs(raw) >= 1000 * _LEAST_MA
    if charging is None:
        return -raw / 1000 if is_micro else None
    size = abs(raw) / 1000 if is_micro else float(abs(raw))
    if not is_micro and size < _LEAST_MA and not charging:
        return None  # such as 0, which some report for "unknown"
    return -size if charging else size


def volts(raw: int | None) -> float | None:
    """A battery's voltage in V, which is reported in µV, mV or V; None for no possible one."""
    for scale in (1_000_000, 1000, 1):
        if raw is not None and 2 <= raw / scale <= 100:
            return raw / scale
    return None


MAX_SAMPLED = 16
"""Clusters and thermal zones that are read at most; some chips have eighty zones."""
POLICIES = "devices/system/cpu/cpufreq/policy*"
POLICY_FILES = ("scaling_cur_freq", "scaling_max_freq")
CONSTANT_POLICY_FILES = ("related_cpus", "cpuinfo_max_freq")
ZONES = "class/thermal/thermal_zone*"
CHOSEN_ZONES = re.compile(r"cpu|soc|skin|batt|pkg", re.IGNORECASE)
"""Of a chip with more zones than are read: those that say whether it throttles."""
SUPPLIES = "class/power_supply/*"
BATTERY_FILES = ("status", "capacity", "temp", "current_now", "voltage_now", "power_now")
FIRMWARE = "devices/platform/soc/soc:firmware/get_throttled"

_END = "#end\n"
SAMPLING_PERIODS_S = {0: 1, 600: 10, 1200: 60}
"""Seconds between readings, from the reading with this number on; a day gives three thousand."""

Parse = Callable[[str], DeviceState]


def sampling_period_s(number: int) -> int:
    """How long to wait before the reading with this number, from 0."""
    return next(s for first, s in reversed(SAMPLING_PERIODS_S.items()) if number >= first)


def sampled_state(text: str) -> DeviceState:
    """The state in `path:content` lines of the files above."""
    return parse_state(text).model_copy(update={"clusters": parse_clusters(text)})


def parse_samples(text: str, parse: Parse = sampled_state) -> tuple[TimedState, ...]:
    """Reads what a device's loop wrote.

    Lines that stay the same come first, then the readings, each between a line `@SECONDS` of the
    device's uptime and a line `#end`; the last may have been cut. The first is empty: it says when
    the program was started.
    """
    constant, *parts = re.split(r"^@([\d.]+)\n", text, flags=re.MULTILINE)
    found = zip(map(float, parts[2::2]), parts[3::2], strict=True)
    return tuple(
        TimedState(
            round(seconds - float(parts[0]), 2), parse(constant + reading.removesuffix(_END))
        )
        for seconds, reading in found
        if reading.endswith(_END)
    )


CPU_ROOT = "/sys/devices/system/cpu"
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
CPU_FILES = (
    *(f"{policy}/{name}" for policy in _POLICIES for name in _OF_POLICY),
    f"cpu[0-9]*/{_CAPACITY}",
    f"cpu[0-9]*/{_SIBLINGS}",
    *(f"cpu[0-9]*/{name}" for name in _THROTTLED),
    "online",
)
"""Which are read, below CPU_ROOT. The same policy may be in several places."""
STATE_COMMAND = "\n".join(
    (
        f"echo '#sys'; cd /sys && grep -Hs . {' '.join(FILES)}",
        f"echo '#cpufreq'; cd {CPU_ROOT} && grep -Hs . {' '.join(CPU_FILES)}",
        "echo '#status'; cat /proc/self/status",
        "echo '#meminfo'; cat /proc/meminfo",
        "echo '#loadavg'; cat /proc/loadavg; true",
    )
)
"""Prints what Linux reports of its state, in sections."""

Files = Mapping[str, str]
# Their governor `powersave` is the usual one, and no mode that saves power.
_GOVERNED_BY_HARDWARE = ("intel_pstate", "amd-pstate-epp", "amd_pstate_epp")


def parse_clusters(text: str) -> tuple[CpuCluster, ...]:
    """Reads `path:content` lines, as `grep -H . CPU_FILES` prints them.

    What is missing from them could not be read on the device, and is None.
    """
    files = _below_root(text)
    found = {cluster.cpus: cluster for cluster in _policies(files) if cluster.cpus}
    known = {cpu for cpus in found for cpu in cpus}
    found |= {cluster.cpus: cluster for cluster in _without_policy(files, known)}
    return tuple(found[cpus] for cpus in sorted(found))


def _below_root(text: str) -> Files:
    """Content by path; what stands before the part that CPU_FILES name is dropped."""
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
