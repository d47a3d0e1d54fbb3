"""What a measurement was done under, from what was observed of the device around its passes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from etdeploy.bench.passes import TIMING, Results
from etdeploy.bench.records.performance import DeviceSample, Disturbance, DisturbanceKind
from etdeploy.bench.records.record import DeviceRecord
from etdeploy.bench.series import StartSeries
from etdeploy.bench.units import long_time
from etdeploy.bench.watch import Observed
from etdeploy.core.console import count
from etdeploy.core.processes.process import run_git
from etdeploy.devices.base import DeviceState
from etdeploy.recipe.model import Cooldown
from etdeploy.runner.protocol import Processors, RunnerResults


def judged(results: Results, device: DeviceRecord) -> Results:
    """The results with what disturbed each pass, which shows when all have ended."""
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


def disturbances_of(series: StartSeries, device: DeviceRecord) -> tuple[Disturbance, ...]:
    """What disturbed the run as a whole."""
    told = run_disturbances([result.disturbances for result in series.passes])
    known = [result.results.processors for result in series.passes]
    if any(processors and processors.busy_s is not None for processors in known):
        return told
    return (*told, *load_disturbance(device.before, device.facts.cpu_count))


def cooldown_notes(results: Results, wanted: Cooldown | None) -> Iterator[str]:
    """Sentences about a device that was not as cool as the recipe wants."""
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


# A part of all processors' time. A quiet machine's own needs stay below 5 % of two processors; with
# more, less is left for the runner, or the processors clock lower for all.
_OTHER_WORK = 0.10
# The runner's thread lost so much of its time directly. On a quiet machine it is below 1 %.
_WAITED = 0.05
# Linux counts processor time in hundredths of a second, at both ends of the window.
_TICKS_S = 0.02
# Steps of a frequency are 3-10 % apart, so a limit that is lower by this is another step.
_LOWERED = 0.02
# Corrections of a clock over a network are far smaller, and slow.
_CLOCK_STEP_S = 1.0
# Work waiting for each processor, where nothing better is known.
_LOAD_PER_CPU = 1.0

# The highest frequency limit that was seen of each cluster, in kHz, by its first processor.
Limits = Mapping[int, int]


def limits_of(states: Iterable[DeviceState]) -> Limits:
    """The highest limit of each cluster in any of the states: what it may use when it is cool."""
    found: dict[int, int] = {}
    for state in states:
        for cluster in state.clusters:
            if cluster.max_khz is not None and cluster.cpus:
                found[cluster.cpus[0]] = max(cluster.max_khz, found.get(cluster.cpus[0], 0))
    return found


def start_disturbances(
    observed: Observed, results: RunnerResults, limits: Limits
) -> tuple[Disturbance, ...]:
    """What disturbed a start of the runner."""
    states = observed.states
    sentences = {
        DisturbanceKind.THROTTLED: (
            *_throttled(states),
            *_lowered(states, limits),
        ),
        DisturbanceKind.BUSY: tuple(_busy(results.processors, results.threads)),
        DisturbanceKind.POWER_SAVING: tuple(_power_saving(states)),
        DisturbanceKind.CLOCK: tuple(_clock(observed, results.processors)),
    }
    return tuple(
        Disturbance(kind=kind, text=" ".join(texts)) for kind, texts in sentences.items() if texts
    )


def run_disturbances(starts: Sequence[Sequence[Disturbance]]) -> tuple[Disturbance, ...]:
    """What disturbed a run as a whole: most of its starts, so that their median is not spared."""
    by_kind = ([d for start in starts for d in start if d.kind == kind] for kind in DisturbanceKind)
    return tuple(found[0] for found in by_kind if 2 * len(found) > len(starts))


def load_disturbance(before: DeviceState, cpu_count: int | None) -> tuple[Disturbance, ...]:
    """Other work by the load average, for devices where a runner cannot tell it from its own."""
    load = before.load_average
    if load is None or not cpu_count or load <= _LOAD_PER_CPU * cpu_count:
        return ()
    text = f"The device was busy before the first start: load average {load:.1f} on "
    return (Disturbance(kind=DisturbanceKind.BUSY, text=f"{text}{count(cpu_count, 'processor')}."),)


def _throttled(states: Sequence[DeviceState]) -> Iterator[str]:
    told = [s.thermal_status for s in states if s.thermal_status not in (None, "none")]
    if told and told[-1] == "under-voltage":
        yield "The power supply was too weak: the firmware reports under-voltage."
    elif told:
        yield f"The device reported that it throttles: its thermal status was {told[-1]}."
    events = [s.throttle_events for s in states if s.throttle_events is not None]
    if len(events) > 1 and events[-1] > events[0]:
        times = count(events[-1] - events[0], "time")
        yield f"The processor slowed itself down for heat {times}."


def _lowered(states: Sequence[DeviceState], limits: Limits) -> Iterator[str]:
    lowest: dict[int, int] = {}
    cpus: dict[int, tuple[int, ...]] = {}
    for state in states:
        for cluster in state.clusters:
            if cluster.max_khz is not None and cluster.cpus:
                first = cluster.cpus[0]
                cpus[first] = cluster.cpus
                lowest[first] = min(cluster.max_khz, lowest.get(first, cluster.max_khz))
    for first, khz in lowest.items():
        highest = limits.get(first, khz)
        if khz < (1 - _LOWERED) * highest:
            yield (
                f"The frequency of {_named(cpus[first])} was limited to {khz / 1e6:.2f} GHz in "
                f"place of {highest / 1e6:.2f}."
            )


def _named(cpus: Sequence[int]) -> str:
    return f"processor {cpus[0]}" if len(cpus) == 1 else f"processors {cpus[0]}-{cpus[-1]}"


def _busy(processors: Processors | None, threads: int) -> Iterator[str]:
    if processors is None or not processors.count or processors.wall_s <= 0:
        return
    wall_s, all_s = processors.wall_s, processors.count * processors.wall_s
    stolen_s = processors.stolen_s or 0.0
    doubt_s = _TICKS_S * processors.count
    if stolen_s - doubt_s > _OTHER_WORK * all_s:
        yield f"The virtual machine's host took {_share(stolen_s, all_s)} of the processors' time."
    other_s = (processors.busy_s or 0.0) - processors.own_s
    if other_s - doubt_s > _OTHER_WORK * all_s:
        where = f"of {count(processors.count, 'processor')}"
        yield f"Other work took {other_s / wall_s:.1f} {where}."
    elif threads <= processors.count and (processors.waited_s or 0.0) > _WAITED * wall_s:
        # With more threads than processors the runner waits for itself.
        waited = _share(processors.waited_s or 0.0, wall_s)
        yield f"The runner waited for a processor {waited} of its time, since other work had it."


def _share(part_s: float, whole_s: float) -> str:
    return f"{100 * part_s / whole_s:.0f} %"


def _power_saving(states: Sequence[DeviceState]) -> Iterator[str]:
    if any(state.power_saving for state in states):
        yield "The device's mode that saves power was on."


def _clock(observed: Observed, processors: Processors | None) -> Iterator[str]:
    device_s = (processors.clock_step_s if processors else None) or 0.0
    for whose, step_s in (("this machine", observed.clock_step_s), ("the device", device_s)):
        if abs(step_s) >= _CLOCK_STEP_S:
            way = "forward" if step_s > 0 else "back"
            yield (
                f"The clock of {whose} was moved {way} by {abs(step_s):,.0f} s, or the machine "
                "slept. Durations are not affected, dates are."
            )
            return


@dataclass(frozen=True)
class Revision:
    """A commit; `dirty` when files below the folder differ from it or are not in it."""

    commit: str | None
    dirty: bool | None


_NONE = Revision(None, None)


def revision_of(path: Path) -> Revision:
    """The revision of the folder that `path` is in.

    Without git, outside a repository, and for a file that the repository ignores (an installed
    package inside it), both fields are None.
    """
    folder = path.parent
    if not folder.is_dir():
        return _NONE
    head = run_git(folder, "rev-parse", "--verify", "HEAD")
    ignored = run_git(folder, "check-ignore", "--quiet", path.name) is not None
    if head is None or ignored:
        return _NONE
    changes = run_git(folder, "status", "--porcelain", "--", ".")
    return Revision(head.strip(), None if changes is None else bool(changes.strip()))
