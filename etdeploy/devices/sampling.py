"""What is read of a device about every second while a program runs; all pure.

Only files of /sys, since reading one takes microseconds and starts nothing. They are read by the
device itself: requests over a connection would wake more than they measure, and stop when the
connection does.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from etdeploy.devices import clusters, sysfs
from etdeploy.devices.base import DeviceState, TimedState

MOST = 16
"""Clusters and thermal zones that are read at most; some chips have eighty zones."""
POLICIES = "devices/system/cpu/cpufreq/policy*"
OF_POLICY = ("scaling_cur_freq", "scaling_max_freq")
CONSTANT_OF_POLICY = ("related_cpus", "cpuinfo_max_freq")
ZONES = "class/thermal/thermal_zone*"
CHOSEN_ZONES = re.compile(r"cpu|soc|skin|batt|pkg", re.IGNORECASE)
"""Of a chip with more zones than are read: those that say whether it throttles."""
SUPPLIES = "class/power_supply/*"
OF_BATTERY = ("status", "capacity", "temp", "current_now", "voltage_now", "power_now")
FIRMWARE = "devices/platform/soc/soc:firmware/get_throttled"

_END = "#end\n"
PERIODS = {0: 1, 600: 10, 1200: 60}
"""Seconds between readings, from the reading with this number on; a day gives three thousand."""

Parse = Callable[[str], DeviceState]


def period_s(number: int) -> int:
    """How long to wait before the reading with this number, from 0."""
    return next(s for first, s in reversed(PERIODS.items()) if number >= first)


def sampled_state(text: str) -> DeviceState:
    """The state in `path:content` lines of the files above."""
    return sysfs.parse_state(text).model_copy(update={"clusters": clusters.parse_clusters(text)})


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
