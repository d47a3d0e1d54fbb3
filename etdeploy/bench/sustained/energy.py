"""The energy of an inference, estimated from what the battery reports."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from etdeploy.bench.records.sustained import Energy
from etdeploy.devices.base import DeviceState

# Fewer readings, or readings of less than half of the time, say nothing about the average.
_FEWEST = 3
_LEAST_PART = 0.5
_MW_PER_W = 1000


def estimate(
    readings: Sequence[tuple[float, DeviceState]],
    idle: DeviceState | None,
    seconds: float,
    inferences: int,
) -> Energy | None:
    """What an inference took of the battery, the device's own needs included.

    The average of the power over the readings, by the trapezoidal rule, times the length of the
    work. Fuel gauges report averages over seconds, so this is an estimate.

    Args:
        readings: States during the work, with seconds by any clock, in their order.
        idle: The state before the work.
        seconds: How long the work took.
        inferences: Their number in it.

    Returns:
        None where the battery does not report current and voltage, is being charged, or was read
        too seldom.
    """
    known = [(at_s, watts) for at_s, state in readings if (watts := _watts(state)) is not None]
    charged = any(_is_charged(state) for _, state in readings)
    if charged or len(known) < _FEWEST or not inferences:
        return None
    span_s = known[-1][0] - known[0][0]
    if span_s < _LEAST_PART * seconds or span_s <= 0:
        return None
    joules = sum((b - a) * (x + y) / 2 for (a, x), (b, y) in itertools.pairwise(known))
    watts = joules / span_s
    return Energy(
        joules_per_inference=watts * seconds / inferences,
        watts=watts,
        idle_watts=None if idle is None or _is_charged(idle) else _watts(idle),
        samples=len(known),
    )


def _watts(state: DeviceState) -> float | None:
    if state.battery_milliamps is None or state.battery_volts is None:
        return None
    return state.battery_milliamps * state.battery_volts / _MW_PER_W


def _is_charged(state: DeviceState) -> bool:
    """Then the current is that of the charger, less what the device takes."""
    return state.charging is True or (state.battery_milliamps or 0) < 0
