"""Observes a device around the passes of a measurement, and waits for it to cool."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from etdeploy.bench.records.performance import CooldownWait, DeviceSample
from etdeploy.bench.units import long_time
from etdeploy.core.cancel import sleep_until_stopped
from etdeploy.core.errors import DeviceError
from etdeploy.core.values import Progress
from etdeploy.devices.base import Device, DeviceState, TimedState
from etdeploy.recipe.model import Cooldown

# Samples of a pass that a record keeps at most: every second of a short one, and as many points as
# the curve of a long one has.
MOST_SAMPLES = 120


@dataclass(frozen=True)
class Observed:
    """What was observed of the device before, during and after a pass.

    Attributes:
        began_s: When the pass began, in seconds since the first did.
        ended_s: When it had ended, by the same clock.
        before: The state before; None where it is not known.
        after: The state after; None where it was not asked for.
        during: States in the pass, with seconds since the runner was started.
        cooldown: The wait before it.
        clock_step_s: How far this machine's clock was moved meanwhile.
    """

    began_s: float = 0.0
    ended_s: float = 0.0
    before: DeviceState | None = None
    after: DeviceState | None = None
    during: tuple[TimedState, ...] = ()
    cooldown: CooldownWait | None = None
    clock_step_s: float = 0.0

    @property
    def states(self) -> tuple[DeviceState, ...]:
        """All that are known, in their order."""
        around = (self.before, *(each.state for each in self.during), self.after)
        return tuple(state for state in around if state is not None)

    def samples(self, pass_name: str) -> Iterator[DeviceSample]:
        """The states in the pass and after it, as a record has them."""
        every = -(-len(self.during) // MOST_SAMPLES) or 1
        for timed in self.during[::every]:
            seconds = round(self.began_s + timed.seconds, 2)
            yield DeviceSample(seconds=seconds, pass_name=pass_name, state=timed.state)
        if self.after is not None:
            ended_s = round(self.ended_s, 2)
            yield DeviceSample(seconds=ended_s, pass_name=pass_name, state=self.after)


UNOBSERVED = Observed()
"""What is known of a pass at which nobody looked."""


# The state after a pass is that before the next if it is not older than this.
_FRESH_S = 1.0


@dataclass(frozen=True)
class PassObservation:
    """A pass that has begun; `ended` gives what was observed of it."""

    watch: DeviceWatch
    observed: Observed
    clock_offset_s: float
    timed: bool

    def ended(self, during: tuple[TimedState, ...]) -> Observed:
        """The device's state is asked for after it, which disturbs nothing any more."""
        ended_s = self.watch.seconds()
        step_s = _clock_offset_s() - self.clock_offset_s
        found = replace(self.observed, ended_s=ended_s, during=during, clock_step_s=step_s)
        if self.timed:
            return replace(found, after=self.watch.look())
        self.watch.forget()
        return found


class DeviceWatch:
    """Observes a device.

    Args:
        device: Locked for this run.
        before: Its state before the first pass.
        wanted: How cool it has to be before a start; None for no wait.
        progress: Told while it waits.
    """

    def __init__(
        self, device: Device, before: DeviceState, wanted: Cooldown | None, progress: Progress
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

    def open(self, *, timed: bool, wanted: Cooldown | None = None) -> PassObservation:
        """Begins a pass; one that is timed waits until the device is cool, and is looked at."""
        cooldown = None
        wanted = wanted or self._wanted
        if timed and wanted:
            cooldown = wait_until_cool(self._asked, wanted, self._progress)
        before = self._before() if timed else None
        observed = Observed(began_s=self.seconds(), before=before, cooldown=cooldown)
        return PassObservation(self, observed, _clock_offset_s(), timed)

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
    wanted: Cooldown,
    progress: Progress,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> CooldownWait | None:
    """Waits until the device is at most as warm as the recipe wants, or the time is over."""
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
    return CooldownWait(
        sensor=last[0],
        from_celsius=first[1],
        to_celsius=last[1],
        waited_s=round(clock() - began, 2),
        reached=last[1] <= wanted.max_celsius,
    )


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
