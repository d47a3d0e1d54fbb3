"""What a program needs of the main memory."""

from __future__ import annotations

from etdeploy.core.kinds import Kind
from etdeploy.core.values import Value


class WeightsKind(Kind):
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
