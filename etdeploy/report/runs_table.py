"""Several runs as one table, a line for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from etdeploy.bench.outputs.verdict import uncompared_outputs, wrong_outputs
from etdeploy.bench.records.record import RunRecord
from etdeploy.bench.units import duration
from etdeploy.core.console import size, table

_NUMBERS = ("median", "p90", "first", "load", "peak memory")


@dataclass(frozen=True)
class Row:
    """One job: its names, and its record or what to say instead of numbers."""

    recipe: str
    device: str
    record: RunRecord | None = None
    failure: str = ""


def runs_table(rows: Sequence[Row], width: int | None = None) -> str:
    """Latencies, load time, peak memory and verdict of each run, in lines of at most `width`."""
    cells = [
        (
            row.recipe,
            row.device,
            *(_numbers(row.record) if row.record else _nothing()),
            _verdict(row),
        )
        for row in rows
    ]
    return table(("recipe", "device", *_NUMBERS, "outputs"), cells, right=_NUMBERS, width=width)


def _numbers(record: RunRecord) -> tuple[str | None, ...]:
    latency = record.workload.latency_ms
    return (
        duration(latency.median),
        duration(latency.p90),
        duration(record.workload.first_inference_ms),
        duration(record.load_ms),
        None if record.peak_rss_bytes is None else size(record.peak_rss_bytes),
    )


def _nothing() -> tuple[None, ...]:
    return (None,) * len(_NUMBERS)


def _verdict(row: Row) -> str:
    if row.record is None:
        return row.failure
    if wrong_outputs(row.record):
        return "WRONG"
    if not row.record.workload.outputs_compared:
        return "not checked"
    return "not all compared" if uncompared_outputs(row.record) else "correct"
