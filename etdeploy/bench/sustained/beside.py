"""What the device reported while it worked: its states beside the stretches of the work."""

from __future__ import annotations

import re
from collections.abc import Sequence

from etdeploy.bench.records.conditions import DeviceSample
from etdeploy.bench.sustained.rate import Stretch
from etdeploy.devices.base import DeviceState

# Sensors of processors, as Linux and Android's makers name them.
_PROCESSOR = re.compile(r"cpu|soc|pkg|core|tsens|cluster|big|mid|little", re.IGNORECASE)
# A state that is further away than this, and than a stretch, says nothing about it.
_NEAR_S = 5.0


def state_near(
    samples: Sequence[DeviceSample], stretch: Stretch, began_s: float
) -> DeviceState | None:
    """The state that was read nearest to the end of a stretch; None if none was near.

    Args:
        samples: Of the pass.
        stretch: Of the work.
        began_s: When the work began, by the clock of the samples.
    """
    end_s = began_s + stretch.end_s
    nearest = min(samples, key=lambda sample: abs(sample.seconds - end_s), default=None)
    limit_s = max(_NEAR_S, stretch.end_s - stretch.begin_s)
    return nearest.state if nearest and abs(nearest.seconds - end_s) <= limit_s else None


def celsius(state: DeviceState) -> float | None:
    """The hottest sensor of the processor; the battery where there is none."""
    known = state.temperatures_celsius.items()
    hot = [value for name, value in known if _PROCESSOR.search(name)]
    return max(hot, default=state.battery_celsius)


def khz(state: DeviceState) -> int | None:
    """The current frequency of the cluster whose highest frequency is the highest of all."""
    clusters = [c for c in state.clusters if c.current_khz is not None]
    fastest = max(clusters, key=lambda c: (c.max_khz or 0, c.current_khz or 0), default=None)
    return fastest.current_khz if fastest else None
