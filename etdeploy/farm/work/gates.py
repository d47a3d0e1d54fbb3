"""What a device has to be before it is measured, and the wait for it."""

from __future__ import annotations

import time
from collections.abc import Callable

from etdeploy.bench.state.sensors import cooling_sensor
from etdeploy.bench.units import long_time
from etdeploy.core.cancel import sleep_until_stopped
from etdeploy.core.console import size
from etdeploy.core.progress import Progress
from etdeploy.devices.base import DeviceState
from etdeploy.farm.model import Gates, Health

# To ask more often would keep a phone from cooling.
_PERIOD_S = 10.0


class GateError(Exception):
    """A gate did not open in time; the message says which, and what the device was like."""


def closed(gates: Gates, state: DeviceState) -> str | None:
    """Why a device cannot be measured now; None if it can.

    What a device does not report closes no gate: a board has no battery.
    """
    reasons = []
    percent, least = state.battery_percent, gates.battery_percent
    if least is not None and percent is not None and percent < least:
        charging = ", not charging" if state.charging is False else ""
        reasons.append(f"battery at {percent} %{charging} (at least {least} %)")
    sensor, most = cooling_sensor(state), gates.temperature_celsius
    if most is not None and sensor is not None and sensor[1] > most:
        reasons.append(f"{sensor[0]} at {sensor[1]:.1f} °C (at most {most:g} °C)")
    free, room = state.free_storage_bytes, gates.free_bytes
    if room is not None and free is not None and free < room:
        reasons.append(f"{size(free)} free (at least {size(room)})")
    return ", ".join(reasons) or None


def wait_until_open(
    gates: Gates,
    read: Callable[[], DeviceState],
    left_s: float,
    progress: Progress,
    waiting: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Waits until every gate is open.

    Args:
        gates: What the device has to be.
        read: Asks it for its state.
        left_s: For at most so long.
        progress: Told what is waited for.
        waiting: Called once if there is a wait.
        clock: In seconds, from any moment on.
        sleep: Sleeps so many seconds.

    Raises:
        GateError: One is still closed.
        DeviceError: The device went away.
        Interrupted: The attempt was stopped.
    """
    if gates.battery_percent is gates.temperature_celsius is gates.free_bytes is None:
        return
    until = clock() + left_s
    told = False
    while reason := closed(gates, read()):
        left = until - clock()
        if left <= 0:
            raise GateError(reason)
        if not told:
            waiting()
            told = True
        progress(f"waiting for at most {long_time(left)}: {reason}")
        sleep_until_stopped(min(_PERIOD_S, left), clock, sleep)


def health_of(state: DeviceState) -> Health:
    """What a device is like, for the night's own health checks."""
    sensor = cooling_sensor(state)
    return Health(
        battery_percent=state.battery_percent,
        temperature_celsius=sensor[1] if sensor else None,
        free_bytes=state.free_storage_bytes,
        thermal_status=state.thermal_status,
    )
