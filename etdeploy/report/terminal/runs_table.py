"""Several runs as one table, a line for each; a simulated run has no times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from etdeploy.bench.outputs.verdict import uncompared_outputs, wrong_outputs
from etdeploy.bench.records.generation import TextGeneration
from etdeploy.bench.records.record import RunRecord
from etdeploy.bench.units import TimeUnit, rate, unit_for
from etdeploy.core.console import size, table
from etdeploy.report.formatting import mark
from etdeploy.report.terminal.latencies import SIMULATED, between

_RATE = "decode tok/s"


@dataclass(frozen=True)
class Row:
    """One job: its names, and its record or what to say instead of numbers."""

    recipe: str
    device: str
    record: RunRecord | None = None
    failure: str = ""


def runs_table(rows: Sequence[Row], width: int | None = None) -> str:
    """Latencies, load time, peak memory and verdict of each run, in lines of at most `width`.

    Of generated text, the median is that of the time per token, and `first` the time to first token
    after the warm-up. The spread is that between starts. What disturbed a run is marked in its last
    column. All times are in one unit, so that columns can be compared, and without text the table
    fits 80 columns.
    """
    records = [row.record for row in rows if row.record and not row.record.simulated]
    medians = [record.workload.timed.median for record in records]
    unit = unit_for(max(medians, default=0.0))
    median, first, load = (f"{name} {unit.name}" for name in ("median", "first", "load"))
    numbers: tuple[str, ...] = (median, "spread", first, load, "memory")
    cells = [(row.recipe, row.device, *_numbers(row.record, unit), _verdict(row)) for row in rows]
    if any(isinstance(record.workload, TextGeneration) for record in records):
        numbers = (_RATE, *numbers)
        cells = [(*c[:2], _decoded(row.record), *c[2:]) for c, row in zip(cells, rows, strict=True)]
    return table(("recipe", "device", *numbers, "outputs"), cells, right=numbers, width=width)


def _numbers(record: RunRecord | None, unit: TimeUnit) -> tuple[str | None, ...]:
    if record is None:
        return (None,) * 5
    if record.simulated:
        return (SIMULATED, *(None,) * 4)
    workload = record.workload
    first_ms = workload.first_ms
    if isinstance(workload, TextGeneration):
        first_ms = workload.first.ttft_ms
    return (
        unit.number(workload.timed.median),
        between(workload.spread),
        unit.number(first_ms),
        unit.number(record.load_ms),
        None if record.peak_rss_bytes is None else size(record.peak_rss_bytes),
    )


def _decoded(record: RunRecord | None) -> str | None:
    """Tokens per second; None for what generates none."""
    if record is None or record.simulated or not isinstance(record.workload, TextGeneration):
        return None
    decoded = record.workload.first.decode_tokens_per_s
    return None if decoded is None else rate(decoded)


def _verdict(row: Row) -> str:
    if row.record is None:
        return row.failure
    # What disturbed a run stands in its last column, which no number follows.
    loss = any(each.is_high for each in row.record.program.quantization_loss)
    words = (_outputs(row.record), "high quantisation loss" if loss else "", mark(row.record))
    return ", ".join(filter(None, words))


def _outputs(record: RunRecord) -> str:
    if wrong_outputs(record):
        return "WRONG"
    if not record.workload.outputs_compared:
        return "not checked"
    return "not all compared" if uncompared_outputs(record) else "correct"
