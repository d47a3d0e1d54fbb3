"""Parses the output of Android's own tools; every function here is pure.

They are getprop, /proc/meminfo, and the services battery, thermalservice and power, as Android 6 to
16 print them. What is absent gives None.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from etdeploy.backends.registry import known_socs
from etdeploy.devices import sysfs
from etdeploy.devices.base import DeviceFacts, DeviceState
from etdeploy.devices.remote.layout import StateSampling, parse_df
from etdeploy.devices.shell import parse_load, parse_meminfo, sections
from etdeploy.devices.sysfs import milliamps, volts
from etdeploy.targets.ndk import soc_name
from etdeploy.targets.platforms import ANDROID_ABIS

# android.os.PowerManager.THERMAL_STATUS_*
_THERMAL_STATUS = ("none", "light", "moderate", "severe", "critical", "emergency", "shutdown")
# android.os.BatteryManager.BATTERY_STATUS_CHARGING and _FULL
_CHARGING = (2, 5)
# BATTERY_STATUS_CHARGING and _DISCHARGING; when it is full, current may flow either way.
_IN_OR_OUT = {2: True, 3: False}

BASE = "/data/local/tmp"
"""The only folder in which adb's user may both write and execute."""

BOOT_ID_COMMAND = "cat /proc/sys/kernel/random/boot_id"
FACTS_COMMAND = (
    "getprop; echo '#meminfo'; cat /proc/meminfo; echo '#nproc'; nproc; "
    f"echo '#boot_id'; {BOOT_ID_COMMAND}; true"
)
# The rest of what `dumpsys power` says is a hundred kilobytes.
_POWER_LINES = (
    "mWakefulness=|Display Power: state=|mLowPowerModeEnabled=|Battery saver state machine:"
)
STATE_COMMAND = "; ".join(
    (
        "echo '#battery'; dumpsys battery",
        "echo '#thermal'; dumpsys thermalservice",
        f"echo '#power'; dumpsys power | grep -E -A1 '{_POWER_LINES}'",
        "echo '#current'; cmd battery get current_now 2>/dev/null",
        f"echo '#df'; df -k {BASE}",
        sysfs.STATE_COMMAND,
    )
)

# Temperatures and throttling are the services' to say where adb's user may not read /sys.
_RARELY = "; ".join(
    (
        "echo '#battery'; dumpsys battery",
        "echo '#current'; cmd battery get current_now 2>/dev/null",
        "echo '#thermal'; dumpsys thermalservice",
    )
)


def parse_getprop(text: str) -> dict[str, str]:
    """Reads `[name]: [value]` lines; a value may span several lines."""
    return {
        match[1]: match[2]
        for match in re.finditer(r"^\[([^\]]+)\]: \[(.*?)\]$", text, re.MULTILINE | re.DOTALL)
    }


def android_facts(name: str, connection: str, output: str) -> DeviceFacts | None:
    """The facts in the output of FACTS_COMMAND; None for an ABI without a target."""
    parts = sections(output)
    properties = parse_getprop(parts[""])
    abi = properties.get("ro.product.cpu.abi")
    if abi not in ANDROID_ABIS:
        return None
    return DeviceFacts(
        name=name,
        kind="android",
        target=ANDROID_ABIS[abi],
        serial=None if _is_port(name.partition(":")[2]) else _own_serial(properties),
        model=properties.get("ro.product.model"),
        manufacturer=properties.get("ro.product.manufacturer"),
        soc=soc_name(
            properties.get("ro.soc.model"), properties.get("ro.board.platform"), known_socs()
        ),
        abi=abi,
        os=_os(properties),
        fingerprint=properties.get("ro.build.fingerprint"),
        cpu_count=_integer(parts.get("nproc", "")),
        memory_bytes=parse_meminfo(parts.get("meminfo", "")),
        connection=connection,
    )


def android_abi(output: str) -> str | None:
    """The ABI in the output of FACTS_COMMAND."""
    return parse_getprop(sections(output)[""]).get("ro.product.cpu.abi")


def android_identity(serial: str, output: str) -> str:
    """A name that is the same over USB, TCP and every adb server.

    Emulators share one serial number, and so do phones that are named by their port; their boot id
    distinguishes them.
    """
    parts = sections(output)
    own = None if _is_port(serial) else _own_serial(parse_getprop(parts[""]))
    return f"android-{own or parts.get('boot_id', '').strip() or serial}"


def _is_port(serial: str) -> bool:
    """Whether a phone is named by its USB port, because another has the same serial number."""
    return serial.startswith(("usb:", "usb-"))


def _own_serial(properties: Mapping[str, str]) -> str | None:
    """The serial number that a phone reports; None of an emulator, which has that of all others."""
    if "1" in (properties.get("ro.kernel.qemu"), properties.get("ro.boot.qemu")):
        return None
    return properties.get("ro.serialno") or properties.get("ro.boot.serialno") or None


def android_state(output: str) -> DeviceState:
    """The state in the output of STATE_COMMAND."""
    parts = sections(output)
    battery = parse_battery(parts.get("battery", ""))
    thermal = parts.get("thermal", "")
    # Many phones let adb's user read these; what the services say comes first.
    files = sysfs.parse_state(parts.get("sys", ""))
    cpu_files = parts.get("cpufreq", "")
    return DeviceState(
        battery_percent=_percent(battery),
        battery_celsius=_tenths(battery.get("temperature")),
        charging=_charging(battery),
        thermal_status=parse_thermal_status(thermal),
        temperatures_celsius=parse_temperatures(thermal) or files.temperatures_celsius,
        load_average=parse_load(parts.get("loadavg", "")),
        clusters=sysfs.parse_clusters(cpu_files),
        battery_milliamps=_milliamps(battery, parts.get("current", ""), files),
        battery_volts=volts(_integer(battery.get("voltage", ""))) or files.battery_volts,
        available_memory_bytes=parse_meminfo(parts.get("meminfo", ""), "MemAvailable"),
        screen_on=parse_screen(parts.get("power", "")),
        power_saving=parse_power_saving(parts.get("power", "")),
        free_storage_bytes=parse_df(parts.get("df", "")),
        usable_cpus=sysfs.parse_usable_cpus(parts.get("status", "")),
        throttle_events=sysfs.parse_throttle_events(cpu_files),
    )


def sampled_state(text: str) -> DeviceState:
    """The state in a reading of SAMPLING: lines of files, and what the services said, if asked."""
    parts = sections(text)
    files = sysfs.sampled_state(parts[""])
    if "battery" not in parts:
        return files
    state = android_state("\n".join(f"#{name}\n{parts[name]}" for name in parts if name))
    known = {name: value for name, value in state if value not in (None, {}, ())}
    return files.model_copy(update=known)


SAMPLING = StateSampling(sampled_state, _RARELY)


def parse_screen(text: str) -> bool | None:
    """Whether the screen is on, from `dumpsys power`; newer ones tell only who is awake."""
    display = re.search(r"^Display Power: state=(\w+)", text, re.MULTILINE)
    if display:
        return display[1].startswith("ON")
    awake = re.search(r"^\s*mWakefulness=([A-Za-z]+)", text, re.MULTILINE)
    return awake[1] in ("Awake", "Dreaming") if awake else None


def parse_power_saving(text: str) -> bool | None:
    """Whether the battery saver is on, from `dumpsys power` of Android 9 and newer, or older.

    The setting `low_power` is no answer: it does nothing while the phone is plugged in.
    """
    found = re.search(
        r"^Battery saver state machine:\s+Enabled=(\w+)|^\s*mLowPowerModeEnabled=(\w+)",
        text,
        re.MULTILINE,
    )
    return "true" in (found[1], found[2]) if found else None


def _milliamps(battery: Mapping[str, str], asked: str, files: DeviceState) -> float | None:
    """From /sys, else the line that Samsung and others add, else Android 14's own answer."""
    if files.battery_milliamps is not None:
        return files.battery_milliamps
    status = _integer(battery.get("status", ""))
    charging = _IN_OR_OUT.get(status) if status is not None else None
    for text in (battery.get("current now", ""), asked):
        found = milliamps(_integer(text), charging)
        if found is not None:
            return found
    return None


def parse_battery(text: str) -> dict[str, str]:
    """Reads the `name: value` lines of `dumpsys battery`."""
    return dict(re.findall(r"^\s+([A-Za-z][\w ]*?): (\S+)\s*$", text, re.MULTILINE))


def parse_thermal_status(text: str) -> str | None:
    """The throttling status in `dumpsys thermalservice`."""
    match = re.search(r"^Thermal Status: (\d+)\s*$", text, re.MULTILINE)
    if not match or int(match[1]) >= len(_THERMAL_STATUS):
        return None
    return _THERMAL_STATUS[int(match[1])]


def parse_temperatures(text: str) -> dict[str, float]:
    """Sensors by name in degrees Celsius, read now; what the service had cached is older.

    Some phones list a sensor that does not exist with the value NaN or below absolute zero.
    """
    heading = "Current temperatures from HAL:"
    start = text.find(heading)
    if start < 0:
        heading = "Cached temperatures:"
        start = text.find(heading)
    block = text[start + len(heading) :] if start >= 0 else ""
    block = re.split(r"^\S", block, maxsplit=1, flags=re.MULTILINE)[0]
    found = re.findall(r"Temperature\{mValue=([^,]+), mType=-?\d+, mName=([^,]+),", block)
    return {name: float(value) for value, name in found if _is_temperature(value)}


def _is_temperature(text: str) -> bool:
    try:
        return -60 < float(text) < 250
    except ValueError:
        return False


def _os(properties: Mapping[str, str]) -> str | None:
    release = properties.get("ro.build.version.release")
    sdk = properties.get("ro.build.version.sdk")
    if not release:
        return None
    return f"Android {release}" + (f" (API {sdk})" if sdk else "")


def _percent(battery: Mapping[str, str]) -> int | None:
    level, scale = _integer(battery.get("level", "")), _integer(battery.get("scale", "100"))
    return None if level is None or not scale else round(100 * level / scale)


def _charging(battery: Mapping[str, str]) -> bool | None:
    status = _integer(battery.get("status", ""))
    return None if status is None else status in _CHARGING


def _tenths(text: str | None) -> float | None:
    value = _integer(text or "")
    return None if value is None else value / 10


def _integer(text: str) -> int | None:
    return int(text) if re.fullmatch(r"\s*-?\d+\s*", text) else None
