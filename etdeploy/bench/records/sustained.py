"""Back-to-back work for minutes: what a device keeps of its speed, and what it costs."""

from __future__ import annotations

from etdeploy.bench.records.conditions import Cooldown, Disturbance
from etdeploy.core.values import Value


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
    cooldown: Cooldown | None = None
    disturbances: tuple[Disturbance, ...] = ()
    ended_early: str | None = None
