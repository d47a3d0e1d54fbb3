"""Pairs of run records, written by hand, for tests of compare and of its text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from etdeploy.bench.records.performance import Disturbance, DisturbanceKind
from etdeploy.bench.records.record import RunRecord
from etdeploy.bench.records.stored import StoredRun
from tests.support.bench_values import make_record, make_series

A_MS = (1.00, 1.02, 0.99, 1.01, 1.00, 0.98, 1.01, 1.00)
RUN_A = "20261121T084449Z-mlp-host-aaaaaaaa"
RUN_B = "20261121T084449Z-mlp-host-bbbbbbbb"


def slower_by(factor: float) -> tuple[float, ...]:
    """Starts of B that take so many times as long as A's."""
    return tuple(factor * time for time in A_MS)


def started(times_ms: Sequence[float], **changes: Any) -> RunRecord:
    """A record with a start for each time, whose fastest inference takes 0.9 times as long."""
    starts = ([time, 0.9 * time, 1.5 * time] for time in times_ms)
    return make_record(make_series(*starts), **changes)


def paired_runs(
    b_ms: Sequence[float], of_a: dict[str, Any] | None = None, of_b: dict[str, Any] | None = None
) -> tuple[StoredRun, StoredRun]:
    """A and B that took turns; their folders are not there."""
    a = started(A_MS[: len(b_ms)], **{"run_id": RUN_A, "interleaved_with": RUN_B, **(of_a or {})})
    b = started(b_ms, **{"run_id": RUN_B, "interleaved_with": RUN_A, **(of_b or {})})
    return StoredRun(Path("/out", RUN_A), a), StoredRun(Path("/out", RUN_B), b)


def separate_runs(
    b_ms: Sequence[float], of_a: dict[str, Any] | None = None, of_b: dict[str, Any] | None = None
) -> tuple[StoredRun, StoredRun]:
    """The same, measured at different times."""
    alone = {"interleaved_with": None}
    return paired_runs(b_ms, {**alone, **(of_a or {})}, {**alone, **(of_b or {})})


def disturbed(run: StoredRun, kind: DisturbanceKind, *starts: int) -> StoredRun:
    """The same with starts, counted from 0, that were disturbed; none stands for the whole run."""
    mark = (Disturbance(kind=kind, text=f"It was {kind}."),)
    record = run.record
    runs = tuple(
        start.model_copy(update={"disturbances": mark}) if i in starts else start
        for i, start in enumerate(record.workload.runs)
    )
    workload = record.workload.model_copy(update={"runs": runs})
    whole = {} if starts else {"disturbances": mark}
    return StoredRun(run.folder, record.model_copy(update={"workload": workload, **whole}))
