"""What disturbed a run, as text: marks beside its numbers, and lines that say why."""

from __future__ import annotations

from collections.abc import Iterator

from etdeploy.bench.records.conditions import SLOWING, Disturbance, DisturbanceKind
from etdeploy.bench.records.record import RunRecord
from etdeploy.bench.records.starts import Start


def mark(record: RunRecord) -> str:
    """The kinds of what disturbed the run as a whole, `throttled, busy`; empty for nothing."""
    kinds = [each.kind for each in record.disturbances if each.kind in SLOWING]
    return ", ".join(kind.value.replace("_", " ") for kind in kinds)


def disturbed_lines(record: RunRecord) -> Iterator[str]:
    """A line for each kind: the starts that it disturbed, and the sentence of the first."""
    starts = record.workload.runs
    for kind in DisturbanceKind:
        told = [(n, d) for n, start in enumerate(starts, 1) for d in _of(start, kind)]
        whole = [each for each in record.disturbances if each.kind == kind]
        if told or whole:
            text = told[0][1].text if told else whole[0].text
            yield f"{kind.value.replace('_', ' ')}{_where([n for n, _ in told], starts)}: {text}"


def _of(start: Start, kind: DisturbanceKind) -> Iterator[Disturbance]:
    return (each for each in start.disturbances if each.kind == kind)


def _where(numbers: list[int], starts: tuple[Start, ...]) -> str:
    if len(starts) < 2 or not numbers:
        return ""
    if len(numbers) == len(starts):
        return " in all starts"
    if len(numbers) == 1:
        return f" in start {numbers[0]} of {len(starts)}"
    return f" in {len(numbers)} of {len(starts)} starts"
