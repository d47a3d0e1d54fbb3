"""The device around a pass, as it was observed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from etdeploy.bench.records.conditions import Cooldown, DeviceSample
from etdeploy.devices.base import DeviceState, TimedState

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
    cooldown: Cooldown | None = None
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
