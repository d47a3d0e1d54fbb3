"""Starts of the timing pass in a record: conditions, times, the spread within and between them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from etdeploy.core.values import StrEnum, Value
from etdeploy.devices.base import DeviceState


class Latency(Value):
    """Times of the timed iterations, in milliseconds.

    Attributes:
        samples: All of them, in the order in which they were measured.
        min: The shortest.
        median: Half of them took no longer.
        mean: Their sum by their number.
        p90: 90 % took no longer, interpolated linearly between samples.
        p99: 99 % took no longer, interpolated in the same way.
        stddev: Standard deviation of the sample, with n - 1; 0 for a single one.
    """

    samples: tuple[float, ...]
    min: float
    median: float
    mean: float
    p90: float
    p99: float
    stddev: float


class WorkloadKind(StrEnum):
    """What was run on the device."""

    INFERENCE = "inference"
    GENERATION = "generation"


class DisturbanceKind(StrEnum):
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


class Start(Value):
    """One whole start of the runner in a timing pass: a process of its own, with its own warm-up.

    Attributes:
        started_at: Date and time in UTC by this machine's clock, ISO 8601.
        warmup: Iterations between the first inference and the timed ones.
        steady: Whether the times were steady when the warm-up ended; null where the recipe gives
            the number of iterations.
        load_ms: Loading the program and its method.
        verify_ms: ExecuTorch's thorough check of the program; null where `load_ms` includes it.
        first_inference_ms: The first inference, before any warm-up.
        samples: How many of `latency_ms.samples` are its own. They stand there start by start.
        median_ms: Of its samples.
        mean_ms: Of its samples.
        stddev_ms: Of its samples, with n - 1; 0 for a single one.
        cooldown: The wait for a cool device before it; null where there was none.
        disturbances: What made it slower, or may have.
    """

    started_at: str
    warmup: int
    steady: bool | None
    load_ms: float
    verify_ms: float | None
    first_inference_ms: float
    samples: int
    median_ms: float
    mean_ms: float
    stddev_ms: float
    cooldown: CooldownWait | None = None
    disturbances: tuple[Disturbance, ...] = ()


class Spread(Value):
    """How far times are apart, within a start and between starts.

    Attributes:
        within_percent: Median over the starts of standard deviation by median, in percent.
        between_percent: Standard deviation of the starts' medians by their median, in percent; null
            with a single start, which cannot show it.
    """

    within_percent: float
    between_percent: float | None


class ThreadsRecord(Value):
    """The results with one number of threads of a sweep.

    Attributes:
        threads: In ExecuTorch's thread pool.
        latency_ms: Of the timed inferences with that many.
        first_inference_ms: The median over the starts.
        runs: Its starts.
        spread: Of its starts.
    """

    threads: int
    latency_ms: Latency
    first_inference_ms: float
    runs: tuple[Start, ...]
    spread: Spread


def samples_by_start(starts: Sequence[Start], latency: Latency) -> tuple[tuple[float, ...], ...]:
    """The samples of each start, in milliseconds."""
    ends = accumulate(start.samples for start in starts)
    return tuple(
        latency.samples[end - start.samples : end] for start, end in zip(starts, ends, strict=True)
    )


class SustainedPoint(Value):
    """A stretch of the sustained pass: a hundredth of it and at least a second, but a twentieth of
    a pass of less than 20 s; always at least one inference.

    Temperature and frequency are those that were read nearest to its end; both clocks begin with
    the start of the runner.

    Attributes:
        seconds: Since the work began, at the end of the stretch.
        inferences_per_s: In the stretch.
        celsius: The hottest sensor of the processor, of all where none is named so, or the battery;
            null where none is read.
        khz: Current frequency of the fastest cluster; null where it is not reported.
    """

    seconds: float
    inferences_per_s: float
    celsius: float | None = None
    khz: int | None = None


class Energy(Value):
    """An estimate from the battery's current and voltage, which are the whole device's: screen,
    radio and everything else that runs is part of it. Fuel gauges report averages over seconds.

    Attributes:
        joules_per_inference: Over the whole pass.
        watts: On average.
        idle_watts: Before the pass; null where it was not read. It is part of the others.
        samples: Readings of the battery.
    """

    joules_per_inference: float
    watts: float
    idle_watts: float | None
    samples: int


class Sustained(Value):
    """Back-to-back inferences from a cool start, at the recipe's first size.

    Attributes:
        seconds: How long they lasted.
        inferences: Their number.
        points: The rate over time.
        start_per_s: Rate at the start, inferences per second: the median of the first three
            stretches, of fewer than nine the first third.
        end_per_s: Rate at the end: the mean of the last tenth.
        retained_percent: Rate at the end by that at the start, in percent.
        to_minus_10_percent_s: When the rate first stayed 10 % below that at the start: from then on
            its running mean over a tenth of the time is below until the end; null if it never did,
            and for fewer than ten stretches.
        to_minus_25_percent_s: The same for 25 %.
        energy: What an inference took; null where the device does not report its battery's current
            and voltage, or is being charged.
        cooldown: The wait for a cool device before it; null where there was none.
        disturbances: What else made it slower, or may have: other work, a mode that saves power.
        ended_early: Why it ended before its time, and everything here is about what was done until
            then; null where it did not.
    """

    seconds: float
    inferences: int
    points: tuple[SustainedPoint, ...]
    start_per_s: float
    end_per_s: float
    retained_percent: float
    to_minus_10_percent_s: float | None
    to_minus_25_percent_s: float | None
    energy: Energy | None = None
    cooldown: CooldownWait | None = None
    disturbances: tuple[Disturbance, ...] = ()
    ended_early: str | None = None


class WeightsKind(StrEnum):
    """How the weights are in memory."""

    MAPPED = "mapped"
    """Pages of the program's file, which the system can drop and read again."""
    LOADED = "loaded"
    """Copied, for example into another layout by a delegate."""
    BOTH = "both"
    """Some are copied, some used in the file."""


class MemoryPoint(Value):
    """Memory at one moment.

    Attributes:
        seconds: Since the runner started.
        rss_bytes: Resident.
        pss_bytes: Resident, with shared pages divided among those that share them; null where it is
            not reported.
    """

    seconds: float
    rss_bytes: int
    pss_bytes: int | None = None


class Memory(Value):
    """The memory pass, at the recipe's first size: a process that loads the program, runs the
    method once or twice and does nothing else.

    Attributes:
        peak_rss_bytes: Highest resident memory, by the kernel's own count; null where the system
            does not report it. The runner and its libraries are part of it.
        peak_pss_bytes: Highest that was read of proportional resident memory, in which pages that
            other processes use too, such as the C library's, are divided among them.
        peak_footprint_bytes: Highest `phys_footprint`, by which Apple's systems limit a process;
            null elsewhere.
        before_load_rss_bytes: Resident before the program was loaded: the runner and its libraries.
        after_load_rss_bytes: Resident when the method was loaded, before the first inference.
        planned_bytes: What the program's memory plan reserves for the method's inputs, outputs and
            activations outside of delegates, from the file; for dynamic shapes at their largest.
            All of it is resident once the method is loaded.
        program_resident_bytes: Of the program's file, mapped and resident at the end; null where
            the system does not say. The system can drop these pages when memory is short.
        weights: How the weights are in memory, judged by `program_resident_bytes` and by what was
            allocated for them while the method was loaded; null where it cannot be said, as for
            less than 1 MiB of weights, or for weights in the memory of an accelerator.
        points: Over time: every 10 ms at first, at twice that whenever there are 256 points, of
            which the higher one of each two stays. So a pass of up to 80 s has at least three
            points in each second.
    """

    peak_rss_bytes: int | None
    peak_pss_bytes: int | None = None
    peak_footprint_bytes: int | None = None
    before_load_rss_bytes: int | None = None
    after_load_rss_bytes: int | None = None
    planned_bytes: int | None = None
    program_resident_bytes: int | None = None
    weights: WeightsKind | None = None
    points: tuple[MemoryPoint, ...] = ()


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
