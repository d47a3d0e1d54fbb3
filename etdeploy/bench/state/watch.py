"""Observes a device around the passes of a measurement, and waits for it to cool."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from etdeploy.bench.state.cooldown import wait_until_cool
from etdeploy.bench.state.observed import Observed
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
