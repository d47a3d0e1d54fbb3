"""What a run was measured under: the device's state meanwhile, waiting, and what disturbed it."""

from __future__ import annotations

from etdeploy.core.values import Kind, Value
from etdeploy.devices.base import DeviceState


class DisturbanceKind(Kind):
    """What makes a run's times unfit for a comparison."""

    THROTTLED = "throttled"
    """The device lowered its frequencies because it was hot."""
    BUSY = "busy"
    """Other work used the processors."""
    POWER_SAVING = "power_saving"
    """A mode that saves power limits the frequencies."""
    CLOCK = "clock"
    """The clock jumped."""


# A clock that jumps moves dates; the runner's times are from one that cannot.
SLOWING = (DisturbanceKind.THROTTLED, DisturbanceKind.BUSY, DisturbanceKind.POWER_SAVING)
"""Kinds that change times."""


class Disturbance(Value):
    """Something that made a run slower, or may have.

    Attributes:
        kind: What it was.
        text: A sentence with the figures.
    """

    kind: DisturbanceKind
    text: str


class CooldownWait(Value):
    """The wait for a cool device before a start.

    Attributes:
        sensor: Whose temperature was waited for.
        from_celsius: Its temperature at first.
        to_celsius: Its temperature when the wait ended.
        waited_s: How long it took.
        reached: Whether the device was cool; false where the time limit ended the wait.
    """

    sensor: str
    from_celsius: float
    to_celsius: float
    waited_s: float
    reached: bool


class DeviceSample(Value):
    """The device's state at one moment of a run.

    Attributes:
        seconds: Since the first pass began.
        pass_name: The pass that ran, as the keys of `passes` name it.
        state: What was read.
    """

    seconds: float
    pass_name: str
    state: DeviceState
