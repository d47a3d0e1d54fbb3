"""The sustained pass as the record has it."""

from __future__ import annotations

from collections.abc import Sequence

from etdeploy.bench.records.conditions import Cooldown, Disturbance, DisturbanceKind
from etdeploy.bench.records.sustained import Sustained, SustainedPoint
from etdeploy.bench.sustained.beside import Reading, celsius, khz, state_near
from etdeploy.bench.sustained.energy import estimate
from etdeploy.bench.sustained.rate import Stretch, drop_s, end_rate, start_rate, stretches_of
from etdeploy.devices.base import DeviceState
from etdeploy.runner.protocol import RunnerSustained


def sustained_of(
    work: RunnerSustained,
    readings: Sequence[Reading] = (),
    idle: DeviceState | None = None,
    cooldown: Cooldown | None = None,
    disturbances: Sequence[Disturbance] = (),
    ended_early: str | None = None,
) -> Sustained:
    """What the work shows, with the device's states beside it.

    Args:
        work: As the runner wrote it.
        readings: Of the device's state in the pass, in their order.
        idle: The state right before the pass.
        cooldown: The wait before it.
        disturbances: What made it slower. That the device throttled is not one here, but what the
            pass is to show.
        ended_early: Why it ended before its time.
    """
    stretches = stretches_of(work.stretches)
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
        energy=estimate(meanwhile, idle, seconds, inferences),
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
