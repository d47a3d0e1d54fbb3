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
    """The memory pass, at the recipe's first size.

    Attributes:
        peak_rss_bytes: Highest resident memory; null where the system does not report it.
        peak_pss_bytes: Highest that was read of proportional resident memory.
        planned_bytes: What the program's memory plan reserves for the method, from the file.
        program_resident_bytes: Of the program's file, resident at the end; null where the system
            does not say.
        weights: How the weights are in memory; null where it cannot be said.
        points: Over time.
    """

    peak_rss_bytes: int | None
    peak_pss_bytes: int | None = None
    planned_bytes: int | None = None
    program_resident_bytes: int | None = None
    weights: WeightsKind | None = None
    points: tuple[MemoryPoint, ...] = ()
