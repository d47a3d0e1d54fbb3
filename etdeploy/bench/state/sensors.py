"""Which of a device's temperatures says how warm it is."""

from __future__ import annotations

import re

from etdeploy.devices.base import DeviceState

# Sensors of processors, as Linux and makers of phones name them.
_PROCESSOR = re.compile(
    r"cpu|soc|pkg|core|k10temp|zenpower|tsens|cluster|big|mid|little", re.IGNORECASE
)
BATTERY = "battery"


def processor_sensor(state: DeviceState) -> tuple[str, float] | None:
    """The hottest sensor of the processor, of all where none is named so: name and °C."""
    known = state.temperatures_celsius
    named = {name: value for name, value in known.items() if _PROCESSOR.search(name)}
    return max((named or known).items(), key=lambda item: item[1], default=None)


def cooling_sensor(state: DeviceState) -> tuple[str, float] | None:
    """The sensor to wait for: name and °C; None where the device reports no temperature.

    The battery's, which follows the warmth of a whole phone over minutes; a processor's falls
    within seconds, while the case, for which it throttles, is still hot. The processor's where
    there is no other.
    """
    if state.battery_celsius is not None:
        return BATTERY, state.battery_celsius
    return processor_sensor(state)
