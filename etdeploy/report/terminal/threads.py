"""The curve of a sweep of threads as a table."""

from __future__ import annotations

from collections.abc import Sequence

from etdeploy.bench.records.starts import ThreadsRecord
from etdeploy.bench.units import unit_for
from etdeploy.core.console import table
from etdeploy.report.terminal.latencies import between


def threads_table(curve: Sequence[ThreadsRecord]) -> str:
    """The times with each number of threads, in the order of the recipe.

    The speed-up is over the smallest number, the spread that between starts.
    """
    fastest = min(curve, key=lambda each: (each.latency_ms.median, each.threads))
    fewest_ms = min(curve, key=lambda each: each.threads).latency_ms.median
    best_ms = fastest.latency_ms.median
    unit = unit_for(best_ms)
    numbers = ("threads", f"median {unit.name}", "spread", f"first {unit.name}", "speed-up")
    rows = [
        (
            each.threads,
            unit.number(each.latency_ms.median, best_ms),
            between(each.spread),
            unit.number(each.first_inference_ms, best_ms),
            _times(fewest_ms, each.latency_ms.median),
            "fastest" if each is fastest else "",
        )
        for each in curve
    ]
    return table((*numbers, ""), rows, right=numbers)


def _times(before_ms: float, now_ms: float) -> str | None:
    return f"{before_ms / now_ms:.2f} x" if now_ms > 0 else None
