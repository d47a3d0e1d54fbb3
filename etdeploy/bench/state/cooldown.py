"""Waits until a device is cool."""

from __future__ import annotations

import time
from collections.abc import Callable

from etdeploy.bench.records.conditions import Cooldown
from etdeploy.bench.state.sensors import cooling_sensor
from etdeploy.bench.units import long_time
from etdeploy.core.cancel import sleep_until_stopped
from etdeploy.core.progress import Progress
from etdeploy.devices.base import DeviceState
from etdeploy.recipe.model import Cooldown as Wanted

# To ask more often would keep a phone from cooling.
_PERIOD_S = 5.0
# How soon a request to stop is seen.


def wait_until_cool(
    read: Callable[[], DeviceState],
    wanted: Wanted,
    progress: Progress,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Cooldown | None:
    """Waits until the device is at most as warm as the recipe wants, or the time is over.

    Args:
        read: Asks the device for its state.
        wanted: Temperature and time limit.
        progress: Told the temperature and the time that is left.
        clock: In seconds, from any moment on.
        sleep: Sleeps so many seconds.

    Returns:
        None where the device reports no temperature; then it does not wait.

    Raises:
        DeviceError: The device went away.
        Interrupted: The run was stopped.
    """
    began = clock()
    first = last = cooling_sensor(read())
    if first is None or last is None:
        return None
    while last[1] > wanted.max_celsius and (passed := clock() - began) < wanted.timeout_s:
        name, celsius = last
        progress(
            f"cooling down to {wanted.max_celsius:g} °C: {name} at {celsius:.1f} °C, "
            f"for at most {long_time(wanted.timeout_s - passed)}",
            # What has no share is shown at once where there is no bar.
            passed / wanted.timeout_s if last is not first else None,
        )
        sleep_until_stopped(min(_PERIOD_S, wanted.timeout_s - passed), clock, sleep)
        # A sensor that stops answering says no more than it said.
        last = cooling_sensor(read()) or last
    return Cooldown(
        sensor=last[0],
        from_celsius=first[1],
        to_celsius=last[1],
        waited_s=round(clock() - began, 2),
        reached=last[1] <= wanted.max_celsius,
    )
