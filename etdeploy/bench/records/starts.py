"""Whole starts of the runner in the timing pass, and the spread within and between them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from etdeploy.bench.records.conditions import Cooldown, Disturbance
from etdeploy.bench.records.latency import Latency
from etdeploy.core.values import Value


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
    cooldown: Cooldown | None = None
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
