"""Conditions of a measurement: wait for a cool device, watch it, and find what disturbed it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from etdeploy.bench.records.performance import (
    CooldownWait,
    DeviceSample,
    Disturbance,
    DisturbanceKind,
)
from etdeploy.bench.units import long_time
from etdeploy.core.cancel import sleep_until_stopped
from etdeploy.core.console import count
from etdeploy.core.errors import DeviceError
from etdeploy.core.values import Progress
from etdeploy.devices.base import Device, DeviceState, TimedState
from etdeploy.recipe.sections.benchmark import Cooldown
from etdeploy.runner.protocol import Processors, RunnerResults

# The most samples of a pass in a record: one for every second of a short pass.
MOST_SAMPLES = 120


@dataclass(frozen=True)
class Observation:
    """The device before, during and after a pass.

    `began_s` and `ended_s` are seconds since the first pass began; the seconds in `during` are
    since the runner started. `cooldown` is the wait before the pass, and `clock_step_s` how far
    this machine's clock was moved during it. A state is None if it is unknown.
    """

    began_s: float = 0.0
    ended_s: float = 0.0
    before: DeviceState | None = None
    after: DeviceState | None = None
    during: tuple[TimedState, ...] = ()
    cooldown: CooldownWait | None = None
    clock_step_s: float = 0.0

    @property
    def states(self) -> tuple[DeviceState, ...]:
        """All known states, in order."""
        around = (self.before, *(each.state for each in self.during), self.after)
        return tuple(state for state in around if state is not None)

    def samples(self, pass_name: str) -> Iterator[DeviceSample]:
        """The states during and after the pass, for the record."""
        every = -(-len(self.during) // MOST_SAMPLES) or 1
        for timed in self.during[::every]:
            seconds = round(self.began_s + timed.seconds, 2)
            yield DeviceSample(seconds=seconds, pass_name=pass_name, state=timed.state)
        if self.after is not None:
            ended_s = round(self.ended_s, 2)
            yield DeviceSample(seconds=ended_s, pass_name=pass_name, state=self.after)


NO_OBSERVATION = Observation()


# The state after a pass is also the state before the next one, unless it is older than this.
_FRESH_S = 1.0


@dataclass(frozen=True)
class PendingObservation:
    """The observation of a pass that is still running."""

    watch: DeviceWatch
    begun: Observation
    clock_offset_s: float
    timed: bool

    def end(self, during: tuple[TimedState, ...]) -> Observation:
        """Reads the state after a timed pass, when this cannot disturb it."""
        ended_s = self.watch.seconds()
        step_s = _clock_offset_s() - self.clock_offset_s
        found = replace(self.begun, ended_s=ended_s, during=during, clock_step_s=step_s)
        if self.timed:
            return replace(found, after=self.watch.read_state())
        self.watch.forget()
        return found


class DeviceWatch:
    """Reads a device's state around the passes, and waits for `cooldown` before timed ones."""

    def __init__(
        self, device: Device, before: DeviceState, cooldown: Cooldown | None, progress: Progress
    ) -> None:
        self._device, self._cooldown, self._progress = device, cooldown, progress
        self._began = time.monotonic()
        self._last: tuple[float, DeviceState] | None = (self._began, before)

    def seconds(self) -> float:
        """Since the first pass began."""
        return time.monotonic() - self._began

    def read_state(self) -> DeviceState | None:
        """The current state; None if the device does not answer: then the next pass fails."""
        try:
            return self._read()
        except DeviceError:
            self._last = None
            return None

    def forget(self) -> None:
        """Makes the next timed pass read the state again."""
        self._last = None

    def begin(self, *, timed: bool, cooldown: Cooldown | None = None) -> PendingObservation:
        """Begins a pass; a timed one waits until the device is cool and has its state read."""
        wait = None
        limits = cooldown or self._cooldown
        if timed and limits:
            wait = wait_until_cool(self._read, limits, self._progress)
        before = self._state_before() if timed else None
        begun = Observation(began_s=self.seconds(), before=before, cooldown=wait)
        return PendingObservation(self, begun, _clock_offset_s(), timed)

    def _state_before(self) -> DeviceState | None:
        """The last state, unless it is old: another measurement may be interleaved with this."""
        if self._last and time.monotonic() - self._last[0] <= _FRESH_S:
            return self._last[1]
        return self.read_state()

    def _read(self) -> DeviceState:
        state = self._device.state()
        self._last = (time.monotonic(), state)
        return state


def _clock_offset_s() -> float:
    """Difference of the date's clock and the monotonic one; changes when the date is set."""
    return time.time() - time.monotonic()


# Reading the state more often would keep a phone from cooling.
_PERIOD_S = 5.0


def wait_until_cool(
    read: Callable[[], DeviceState],
    limits: Cooldown,
    progress: Progress,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> CooldownWait | None:
    """Waits until the device is at most as warm as the recipe allows, or until its time limit."""
    began = clock()
    first = last = cooling_sensor(read())
    if first is None or last is None:
        return None
    while last[1] > limits.max_celsius and (passed := clock() - began) < limits.timeout_s:
        name, celsius = last
        progress(
            f"cooling down to {limits.max_celsius:g} °C: {name} at {celsius:.1f} °C, "
            f"for at most {long_time(limits.timeout_s - passed)}",
            # Progress without a fraction is shown at once even without a progress bar.
            passed / limits.timeout_s if last is not first else None,
        )
        sleep_until_stopped(min(_PERIOD_S, limits.timeout_s - passed), clock, sleep)
        # Keep the last reading of a sensor that stops answering.
        last = cooling_sensor(read()) or last
    return CooldownWait(
        sensor=last[0],
        from_celsius=first[1],
        to_celsius=last[1],
        waited_s=round(clock() - began, 2),
        reached=last[1] <= limits.max_celsius,
    )


# Names of processor sensors on Linux and on phones.
_PROCESSOR = re.compile(
    r"cpu|soc|pkg|core|k10temp|zenpower|tsens|cluster|big|mid|little", re.IGNORECASE
)


BATTERY = "battery"


def processor_sensor(state: DeviceState) -> tuple[str, float] | None:
    """Name and °C of the hottest processor sensor, or of the hottest one of unknown sensors."""
    known = state.temperatures_celsius
    named = {name: value for name, value in known.items() if _PROCESSOR.search(name)}
    return max((named or known).items(), key=lambda item: item[1], default=None)


def cooling_sensor(state: DeviceState) -> tuple[str, float] | None:
    """Name and °C of the sensor to wait for; None if the device reports no temperature.

    The battery follows the temperature of a phone's case, for which it throttles, over minutes; a
    processor cools within seconds. The processor's sensor is used only if there is no battery.
    """
    if state.battery_celsius is not None:
        return BATTERY, state.battery_celsius
    return processor_sensor(state)


# Share of all processors' time. An idle machine uses less than 5 % of two processors; more leaves
# less for the runner, or lowers the clock of all.
_OTHER_WORK = 0.10


# Share of its time that the runner's thread waited. On an idle machine it is below 1 %.
_WAITED = 0.05


# Linux counts processor time in hundredths of a second, at both ends of the window.
_TICKS_S = 0.02


# Steps of a frequency are 3-10 % apart, so a limit that is lower by this is another step.
_LOWERED = 0.02


# NTP corrections are far smaller, and slow.
_CLOCK_STEP_S = 1.0


# Load average for each processor, if nothing better is known.
_LOAD_PER_CPU = 1.0


# The highest frequency limit of each cluster in kHz, by its first processor.
FrequencyLimits = Mapping[int, int]


def frequency_limits(states: Iterable[DeviceState]) -> FrequencyLimits:
    """The highest limit of each cluster in any state: the limit of a cool device."""
    found: dict[int, int] = {}
    for state in states:
        for cluster in state.clusters:
            if cluster.max_khz is not None and cluster.cpus:
                found[cluster.cpus[0]] = max(cluster.max_khz, found.get(cluster.cpus[0], 0))
    return found


def start_disturbances(
    observation: Observation, results: RunnerResults, limits: FrequencyLimits
) -> tuple[Disturbance, ...]:
    """What disturbed a start of the runner."""
    states = observation.states
    sentences = {
        DisturbanceKind.THROTTLED: (
            *_throttled(states),
            *_lowered(states, limits),
        ),
        DisturbanceKind.BUSY: tuple(_busy(results.processors, results.threads)),
        DisturbanceKind.POWER_SAVING: tuple(_power_saving(states)),
        DisturbanceKind.CLOCK: tuple(_clock(observation, results.processors)),
    }
    return tuple(
        Disturbance(kind=kind, text=" ".join(texts)) for kind, texts in sentences.items() if texts
    )


def run_disturbances(starts: Sequence[Sequence[Disturbance]]) -> tuple[Disturbance, ...]:
    """What disturbed most of a run's starts, and thereby their median."""
    by_kind = ([d for start in starts for d in start if d.kind == kind] for kind in DisturbanceKind)
    return tuple(found[0] for found in by_kind if 2 * len(found) > len(starts))


def load_average_disturbance(before: DeviceState, cpu_count: int | None) -> tuple[Disturbance, ...]:
    """Other work by the load average, for devices where the runner cannot measure it."""
    load = before.load_average
    if load is None or not cpu_count or load <= _LOAD_PER_CPU * cpu_count:
        return ()
    text = f"The device was busy before the first start: load average {load:.1f} on "
    return (Disturbance(kind=DisturbanceKind.BUSY, text=f"{text}{count(cpu_count, 'processor')}."),)


def _throttled(states: Sequence[DeviceState]) -> Iterator[str]:
    statuses = [s.thermal_status for s in states if s.thermal_status not in (None, "none")]
    if statuses and statuses[-1] == "under-voltage":
        yield "The power supply was too weak: the firmware reports under-voltage."
    elif statuses:
        yield f"The device reported that it throttles: its thermal status was {statuses[-1]}."
    events = [s.throttle_events for s in states if s.throttle_events is not None]
    if len(events) > 1 and events[-1] > events[0]:
        times = count(events[-1] - events[0], "time")
        yield f"The processor slowed itself down for heat {times}."


def _lowered(states: Sequence[DeviceState], limits: FrequencyLimits) -> Iterator[str]:
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
        yield "The device was in power-saving mode."


def _clock(observation: Observation, processors: Processors | None) -> Iterator[str]:
    device_s = (processors.clock_step_s if processors else None) or 0.0
    for whose, step_s in (("this machine", observation.clock_step_s), ("the device", device_s)):
        if abs(step_s) >= _CLOCK_STEP_S:
            way = "forward" if step_s > 0 else "back"
            yield (
                f"The clock of {whose} was moved {way} by {abs(step_s):,.0f} s, or the machine "
                "slept. Durations are not affected, dates are."
            )
            return
