"""Generated text for a terminal: the grid of points with what its numbers mean."""

from __future__ import annotations

from collections.abc import Iterator

from etdeploy.bench.records.generation import TextGeneration
from etdeploy.bench.records.record import RunRecord
from etdeploy.bench.units import duration
from etdeploy.core.console import count, size, table
from etdeploy.core.text.layout import cut
from etdeploy.report.generation import COLUMNS, DEFINITIONS, outside, point_cells, texts, told_text
from etdeploy.report.terminal.layout import wrapped

_LONGEST_TEXT = 400


def points_table(workload: TextGeneration) -> str:
    """A line for each point, in the recipe's order."""
    return table(COLUMNS, [point_cells(point) for point in workload.points], right=COLUMNS)


def generation_lines(record: RunRecord, workload: TextGeneration) -> Iterator[str]:
    """Lines behind labels: the text, what the numbers are of, and what they mean."""
    text = told_text(workload)
    if text is not None:
        end = "" if workload.first.stopped else " ..."
        yield wrapped("text", [cut(text, _LONGEST_TEXT) + end])
    starts = count(len(workload.runs), "start")
    yield wrapped(
        "medians",
        [
            f"over {texts(workload.points)} generations of each line in {starts}, "
            f"{count(record.runner.threads, 'thread')}; load {duration(record.load_ms)}, first "
            f"token of a new process after {duration(workload.first_ttft_ms)}"
        ],
    )
    if workload.huge_page_bytes:
        yield wrapped("huge pages", [f"{size(workload.huge_page_bytes)} of weights and cache"])
    if workload.methods:
        yield wrapped(
            "delegates", [f"time outside of them: {outside(workload)}; etdeploy profile shows what"]
        )
    for name, meaning in DEFINITIONS.items():
        yield wrapped(name, [meaning])
