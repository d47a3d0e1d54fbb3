"""The sustained pass as the record has it: rates, drops, energy."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from etdeploy.bench.conditions import processor_sensor
from etdeploy.bench.records.performance import (
    CooldownWait,
    Disturbance,
    DisturbanceKind,
    Energy,
    Sustained,
    SustainedPoint,
)
from etdeploy.bench.statistics import percentile
from etdeploy.devices.base import DeviceState
from etdeploy.runner.protocol import RunnerSustained


def make_sustained(
    work: RunnerSustained,
    readings: Sequence[Reading] = (),
    idle: DeviceState | None = None,
    cooldown: CooldownWait | None = None,
    disturbances: Sequence[Disturbance] = (),
    ended_early: str | None = None,
) -> Sustained:
    """Return the rates over time, with the device's states."""
    stretches = make_stretches(work.stretches)
    began_s, seconds = work.began_s, stretches[-1].end_s
    inferences = sum(stretch.inferences for stretch in stretches)
    meanwhile = [reading for reading in readings if 0 <= reading[0] - began_s <= seconds]
    start_per_s, end_per_s = start_rate(stretches), end_rate(stretches)
    return Sustained(
        seconds=seconds,
        inferences=inferences,
        points=tuple(_point(each, began_s, readings) for each in stretches),
        start_per_s=start_per_s,
        end_per_s=end_per_s,
        retained_percent=100 * end_per_s / start_per_s if start_per_s > 0 else 100.0,
        to_minus_10_percent_s=drop_s(stretches, 0.10),
        to_minus_25_percent_s=drop_s(stretches, 0.25),
        energy=estimate_energy(meanwhile, idle, seconds, inferences),
        cooldown=cooldown,
        disturbances=tuple(d for d in disturbances if d.kind != DisturbanceKind.THROTTLED),
        ended_early=ended_early,
    )


def _point(stretch: Stretch, began_s: float, readings: Sequence[Reading]) -> SustainedPoint:
    state = state_near(readings, began_s + stretch.end_s, stretch.end_s - stretch.begin_s)
    return SustainedPoint(
        seconds=stretch.end_s,
        inferences_per_s=stretch.per_s,
        celsius=celsius(state) if state else None,
        khz=khz(state) if state else None,
    )


# Seconds since the runner started, with the state at that time.
Reading = tuple[float, DeviceState]


# A state belongs to a stretch within this time, or within the stretch's own length.
_NEAR_S = 5.0


def state_near(readings: Sequence[Reading], end_s: float, length_s: float) -> DeviceState | None:
    """The state nearest to the end of a stretch; None if none is near."""
    nearest = min(readings, key=lambda reading: abs(reading[0] - end_s), default=None)
    if nearest is None or abs(nearest[0] - end_s) > max(_NEAR_S, length_s):
        return None
    return nearest[1]


def celsius(state: DeviceState) -> float | None:
    """The temperature of the hottest processor sensor, or else of the battery."""
    sensor = processor_sensor(state)
    return sensor[1] if sensor else state.battery_celsius


def khz(state: DeviceState) -> int | None:
    """The current frequency of the fastest cluster."""
    clusters = [c for c in state.clusters if c.current_khz is not None]
    fastest = max(clusters, key=lambda c: (c.max_khz or 0, c.current_khz or 0), default=None)
    return fastest.current_khz if fastest else None


# An average needs so many readings, over this share of the time.
_FEWEST = 3


_LEAST_PART = 0.5


_MW_PER_W = 1000


def estimate_energy(
    readings: Sequence[tuple[float, DeviceState]],
    idle: DeviceState | None,
    seconds: float,
    inferences: int,
) -> Energy | None:
    """Estimate the energy of an inference from the battery, which supplies the whole device.

    It is the mean power over the readings, by the trapezoidal rule, times the length of the work.
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
    """Whether the device is charged: then the battery's current is not the device's."""
    return state.charging is True or (state.battery_milliamps or 0) < 0


# With fewer stretches, a drop cannot be distinguished from noise.
FEWEST = 10


# The rate at the start is the median of so many stretches, of which one may be disturbed.
_FIRST = 3


# The rate at the end is the mean over this share of the time: throttled phones change between two
# frequencies within seconds.
_LAST = 0.1


# The window of the running mean in `drop_s`, as a share of the time.
_SMOOTHING = 0.1


@dataclass(frozen=True)
class Stretch:
    """A part of the work; times are seconds since the work began."""

    begin_s: float
    end_s: float
    inferences: int

    @property
    def per_s(self) -> float:
        """Inferences per second."""
        return mean_rate((self,))


def make_stretches(ends: Sequence[tuple[float, int]]) -> tuple[Stretch, ...]:
    """Return the stretches; each begins at the end of the one before."""
    begins = itertools.chain((0.0,), (end for end, _ in ends))
    return tuple(Stretch(begin, end, n) for begin, (end, n) in zip(begins, ends, strict=False))


def mean_rate(stretches: Sequence[Stretch]) -> float:
    """Inferences per second over stretches that follow each other; 0 where no time passed."""
    seconds = stretches[-1].end_s - stretches[0].begin_s
    return sum(stretch.inferences for stretch in stretches) / seconds if seconds > 0 else 0.0


def start_rate(stretches: Sequence[Stretch]) -> float:
    """Rate at the start: the median of the first three stretches, of fewer than nine a third."""
    first = stretches[: min(_FIRST, math.ceil(len(stretches) / 3))]
    return percentile([stretch.per_s for stretch in first], 50)


def end_rate(stretches: Sequence[Stretch]) -> float:
    """Rate at the end: the mean of the last tenth."""
    return mean_rate(stretches[-math.ceil(_LAST * len(stretches)) :])


def drop_s(stretches: Sequence[Stretch], share: float) -> float | None:
    """When the rate fell by a share below that at the start, and stayed there.

    It stays there if the running mean over a tenth of the time is below until the end, which
    ignores short recoveries and governors that oscillate. The time of the drop is that of the
    first stretch in the window that is below.
    """
    if len(stretches) < FEWEST:
        return None
    limit = start_rate(stretches) * (1 - share)
    reach = max(1, int(_SMOOTHING * len(stretches) / 2))
    # Only whole windows: shorter ones at the ends would follow every oscillation.
    middles = range(reach, len(stretches) - reach)
    above = [i for i in middles if mean_rate(stretches[i - reach : i + reach + 1]) > limit]
    stays_from = above[-1] + 1 if above else reach
    if stays_from + reach >= middles.stop:
        return None  # it fell at the very end, if at all
    return next(s.end_s for s in stretches[stays_from - reach :] if s.per_s <= limit)
