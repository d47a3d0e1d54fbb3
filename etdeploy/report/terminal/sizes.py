"""The sizes of a run record as a table, one line for each."""

from __future__ import annotations

from collections.abc import Sequence

from etdeploy.bench.records.record import SizeRecord
from etdeploy.bench.units import unit_for
from etdeploy.core.console import size as bytes_text
from etdeploy.core.console import table
from etdeploy.report.terminal.latencies import between

_LONGEST = 40


# Stands where a latency would.
SIMULATED = "simulated"


def simulated_sizes(sizes: Sequence[SizeRecord]) -> str:
    """The verdict on each size of a simulated run, in the order of the recipe."""
    rows = [(each.name, _dimensions(each), SIMULATED, _verdict(each)) for each in sizes]
    return table(("size", "dimensions", "latency", "outputs"), rows)


def sizes_table(sizes: Sequence[SizeRecord]) -> str:
    """Latencies, peak memory and verdict of each size, in the order of the recipe.

    The spread is that between starts.
    """
    shortest_ms = min(each.latency_ms.median for each in sizes)
    unit = unit_for(shortest_ms)
    numbers = (f"median {unit.name}", "spread", f"first {unit.name}", "peak memory")
    rows = [
        (
            each.name,
            _dimensions(each),
            unit.number(each.latency_ms.median, shortest_ms),
            between(each.spread),
            unit.number(each.first_inference_ms, shortest_ms),
            "" if each.peak_rss_bytes is None else bytes_text(each.peak_rss_bytes),
            _verdict(each),
        )
        for each in sizes
    ]
    return table(("size", "dimensions", *numbers, "outputs"), rows, right=numbers)


def _dimensions(each: SizeRecord) -> str:
    text = ", ".join(f"{name} {size}" for name, size in each.sizes.items()) or "the example's"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _verdict(each: SizeRecord) -> str:
    if not each.outputs:
        return "not checked"
    verdicts = {check.within_tolerance for check in each.outputs}
    if False in verdicts:
        return "WRONG"
    return "not compared" if None in verdicts else "correct"
