"""Back-to-back work for minutes: what a device keeps of its speed, and what it costs."""

from __future__ import annotations

from etdeploy.core.values import Value


class SustainedPoint(Value):
    """A stretch of the sustained pass.

    Attributes:
        seconds: Since the pass began, at the end of the stretch.
        inferences_per_s: In the stretch.
        celsius: The hottest sensor of the processor, or the battery; null where none is read.
        khz: Current frequency of the fastest cluster; null where it is not reported.
    """

    seconds: float
    inferences_per_s: float
    celsius: float | None = None
    khz: int | None = None


class Energy(Value):
    """An estimate from the battery's current and voltage, which is the whole device's.

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
    """Back-to-back inferences from a cool start.

    Attributes:
        seconds: How long they lasted.
        inferences: Their number.
        points: The rate over time.
        start_per_s: Rate at the start, inferences per second.
        end_per_s: Rate at the end.
        retained_percent: Rate at the end by that at the start, in percent.
        to_minus_10_percent_s: When the rate first stayed 10 % below that at the start; null if it
            never did.
        to_minus_25_percent_s: The same for 25 %.
        energy: What an inference took; null where the device does not report its battery's current
            and voltage, or is being charged.
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
