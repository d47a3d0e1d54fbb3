"""Runs of a series as nights: those that follow each other soon share the night's condition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from etdeploy.history.entry import Entry

# Repeats are spread over the hours of a window, and the day lies between two windows.
_GAP_S = 6 * 3600.0
_LONGEST_S = 18 * 3600.0


@dataclass(frozen=True)
class Night:
    """Runs of one series that share a night; at least one, the earliest first."""

    entries: tuple[Entry, ...]

    def values(self, metric: str) -> tuple[float, ...]:
        """Of its runs that have the metric; only positive ones, which have a logarithm."""
        return tuple(e.metrics[metric] for e in self.entries if e.metrics.get(metric, 0) > 0)


def by_night(entries: Sequence[Entry]) -> list[Night]:
    """Runs grouped into nights, the earliest first.

    A night ends before a pause of six hours, or 18 hours after it began: a device that is measured
    all day has several.

    Args:
        entries: Of one series, the earliest first.
    """
    nights: list[list[Entry]] = []
    for entry in entries:
        if nights and _together(nights[-1], entry):
            nights[-1].append(entry)
        else:
            nights.append([entry])
    return [Night(tuple(night)) for night in nights]


def _together(night: Sequence[Entry], entry: Entry) -> bool:
    first, last, this = (_seconds(e.started_at) for e in (night[0], night[-1], entry))
    if first is None or last is None or this is None:
        return night[-1].started_at == entry.started_at
    return this - last <= _GAP_S and this - first <= _LONGEST_S


def _seconds(started_at: str) -> float | None:
    try:
        return datetime.fromisoformat(started_at).timestamp()
    except ValueError:  # a record of an older version may have anything there
        return None
