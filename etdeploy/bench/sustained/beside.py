"""What the device reported while it worked: its states beside the stretches of the work."""

from __future__ import annotations

from collections.abc import Sequence

from etdeploy.bench.state.sensors import processor_sensor
from etdeploy.devices.base import DeviceState

# Seconds since the runner was started, and what was read then.
Reading = tuple[float, DeviceState]

# A state that is further away than this, and than a stretch, says nothing about it.
_NEAR_S = 5.0


def state_near(readings: Sequence[Reading], end_s: float, length_s: float) -> DeviceState | None:
    """The state that was read nearest to the end of a stretch; None if none was near.

    Args:
        readings: Of the pass.
        end_s: When the stretch ended, by the clock of the readings.
        length_s: Of the stretch.
    """
    nearest = min(readings, key=lambda reading: abs(reading[0] - end_s), default=None)
    if nearest is None or abs(nearest[0] - end_s) > max(_NEAR_S, length_s):
        return None
    return nearest[1]


def celsius(state: DeviceState) -> float | None:
    """The hottest sensor of the processor, of all where none is named so, or the battery."""
    sensor = processor_sensor(state)
    return sensor[1] if sensor else state.battery_celsius


def khz(state: DeviceState) -> int | None:
    """The current frequency of the cluster whose highest frequency is the highest of all."""
    clusters = [c for c in state.clusters if c.current_khz is not None]
    fastest = max(clusters, key=lambda c: (c.max_khz or 0, c.current_khz or 0), default=None)
    return fastest.current_khz if fastest else None
