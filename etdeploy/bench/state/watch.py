"""Observes a device around the passes of a measurement, and waits for it to cool."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from etdeploy.bench.records.conditions import Cooldown
from etdeploy.bench.state.observed import Observed
from etdeploy.bench.state.sensors import cooling_sensor
from etdeploy.bench.units import long_time
from etdeploy.core.cancel import sleep_until_stopped
from etdeploy.core.errors import DeviceError
from etdeploy.core.progress import Progress
from etdeploy.devices.base import Device, DeviceState, TimedState
from etdeploy.recipe.model import Cooldown as Wanted

# The state after a pass is that before the next if it is not older than this.
_FRESH_S = 1.0


@dataclass(frozen=True)
class Opening:
    """A pass that has begun; `ended` gives what was observed of it."""

    watch: Watch
    observed: Observed
    clock_offset_s: float
    timed: bool

    def ended(self, during: tuple[TimedState, ...]) -> Observed:
        """The device's state is asked for after it, which disturbs nothing any more.

        Args:
            during: States that were read in the pass.
        """
        ended_s = self.watch.seconds()
        step_s = _clock_offset_s() - self.clock_offset_s
        found = replace(self.observed, ended_s=ended_s, during=during, clock_step_s=step_s)
        if self.timed:
            return replace(found, after=self.watch.look())
        self.watch.forget()
        return found


class Watch:
    """Observes a device.

    Args:
        device: Locked for this run.
        before: Its state before the first pass.
        wanted: How cool it has to be before a start; None for no wait.
        progress: Told while it waits.
    """

    def __init__(
        self, device: Device, before: DeviceState, wanted: Wanted | None, progress: Progress
    ) -> None:
        self._device, self._wanted, self._progress = device, wanted, progress
        self._began = time.monotonic()
        self._last: tuple[float, DeviceState] | None = (self._began, before)

    def seconds(self) -> float:
        """Since the first pass began."""
        return time.monotonic() - self._began

    def look(self) -> DeviceState | None:
        """The state now; None when the device does not answer, which the next pass will tell."""
        try:
            return self._asked()
        except DeviceError:
            self._last = None
            return None

    def forget(self) -> None:
        """Lets the next pass that is timed ask for the state itself."""
        self._last = None

    def open(self, *, timed: bool, wanted: Wanted | None = None) -> Opening:
        """Begins a pass; one that is timed waits until the device is cool, and is looked at.

        Args:
            timed: Whether its times count.
            wanted: How cool the device has to be, where that is not what every start waits for.

        Raises:
            DeviceError: The device went away.
            Interrupted: The run was stopped.
        """
        cooldown = None
        wanted = wanted or self._wanted
        if timed and wanted:
            cooldown = wait_until_cool(self._asked, wanted, self._progress)
        before = self._before() if timed else None
        observed = Observed(began_s=self.seconds(), before=before, cooldown=cooldown)
        return Opening(self, observed, _clock_offset_s(), timed)

    def _before(self) -> DeviceState | None:
        """The last state; another where it is old, since other measurements may take turns."""
        if self._last and time.monotonic() - self._last[0] <= _FRESH_S:
            return self._last[1]
        return self.look()

    def _asked(self) -> DeviceState:
        state = self._device.state()
        self._last = (time.monotonic(), state)
        return state


def _clock_offset_s() -> float:
    """How far the date is ahead of a clock that nobody moves; changes only with the date."""
    return time.time() - time.monotonic()


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
