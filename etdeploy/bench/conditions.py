"""What a measurement was done under, from what was observed of the device around its passes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from etdeploy.bench.passes import TIMING, Results
from etdeploy.bench.records.conditions import DeviceSample, Disturbance
from etdeploy.bench.records.record import DeviceRecord
from etdeploy.bench.state.disturbances import (
    limits_of,
    load_disturbance,
    run_disturbances,
    start_disturbances,
)
from etdeploy.bench.timing.series import Series
from etdeploy.bench.units import long_time
from etdeploy.core.console import count
from etdeploy.recipe.model import Cooldown


def judged(results: Results, device: DeviceRecord) -> Results:
    """The results with what disturbed each pass, which shows when all have ended.

    Args:
        results: By key of the pass.
        device: Its states before and after.
    """
    states = [state for result in results.values() for state in result.observed.states]
    limits = limits_of((device.before, *states, device.after))
    return {
        key: replace(
            result, disturbances=start_disturbances(result.observed, result.results, limits)
        )
        for key, result in results.items()
    }


def samples_of(results: Results) -> tuple[DeviceSample, ...]:
    """The device's states during the run, in their order."""
    return tuple(s for key, result in results.items() for s in result.observed.samples(key))


def disturbances_of(series: Series, device: DeviceRecord) -> tuple[Disturbance, ...]:
    """What disturbed the run as a whole.

    Args:
        series: The starts that its headline is of.
        device: Its states.
    """
    told = run_disturbances([result.disturbances for result in series.passes])
    known = [result.results.processors for result in series.passes]
    if any(processors and processors.busy_s is not None for processors in known):
        return told
    return (*told, *load_disturbance(device.before, device.facts.cpu_count))


def cooldown_notes(results: Results, wanted: Cooldown | None) -> Iterator[str]:
    """Sentences about a device that was not as cool as the recipe wants.

    Args:
        results: By key of the pass.
        wanted: By the recipe.
    """
    if wanted is None:
        return
    starts = [r for r in results.values() if r.step.name == TIMING]
    waits = [r.observed.cooldown for r in starts if r.observed.cooldown]
    if not waits:
        yield (
            f"The recipe waits for {wanted.max_celsius:g} °C before each start, but the device "
            "reports no temperature: no start has waited."
        )
    warm = [wait for wait in waits if not wait.reached]
    if warm:
        hottest = max(warm, key=lambda wait: wait.to_celsius)
        where = f"{len(warm)} of {count(len(starts), 'start')}" if len(starts) > 1 else "the start"
        yield (
            f"The device did not cool to {wanted.max_celsius:g} °C within "
            f"{long_time(wanted.timeout_s)} before {where}: {hottest.sensor} was at "
            f"{hottest.to_celsius:.1f} °C. Wait longer "
            f"(--set benchmark.cooldown.timeout_s={2 * wanted.timeout_s:g}), or for less "
            "(--set benchmark.cooldown.max_celsius=...)."
        )
