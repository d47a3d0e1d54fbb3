"""The times of a run as text: their table, and how far they are apart."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from etdeploy.bench.records.generation import TextGeneration
from etdeploy.bench.records.performance import Spread, Start
from etdeploy.bench.records.record import RunRecord, SizeRecord, Workload
from etdeploy.bench.units import duration, unit_for
from etdeploy.core.console import count, table
from etdeploy.core.console import size as bytes_text

# More medians than that are shown as their range.
_MOST_MEDIANS = 5


def latencies(record: RunRecord) -> str:
    """Median and others over the samples of all starts, first inference and load."""
    latency = record.inference.latency_ms
    percent = 100 * latency.stddev / latency.median if latency.median > 0 else 0.0
    rows = (
        ("median", latency.median, _timed(record)),
        ("min", latency.min, ""),
        ("mean", latency.mean, ""),
        ("p90", latency.p90, ""),
        ("p99", latency.p99, ""),
        ("stddev", latency.stddev, f"{percent:.0f} % of the median"),
        ("first inference", record.inference.first_inference_ms, "before any warm-up"),
        ("load", record.load_ms, "program and method" + _verified(record)),
    )
    unit = unit_for(latency.median)
    cells = [(name, unit.number(value, like_ms=latency.median)) for name, value, _ in rows]
    lines = table(("latency", unit.name), cells, right=(unit.name,)).splitlines()
    comments = ("", "", *(comment for _, _, comment in rows))
    return "\n".join(f"{line}  {text}" for line, text in zip(lines, comments, strict=True))


def starts(workload: Workload) -> Iterator[tuple[str, str]]:
    """Labels with texts: the spread within and between the starts, and their warm-up."""
    yield "spread", _spread(workload.spread, workload.runs)
    what = "generation" if isinstance(workload, TextGeneration) else "inference"
    yield "warm-up", _warmup(workload.runs, what)


def between(spread: Spread) -> str | None:
    """The spread between starts for a table; None where it is not known."""
    return None if spread.between_percent is None else _percent(spread.between_percent)


def _timed(record: RunRecord) -> str:
    workload = record.inference
    inferences = count(len(workload.latency_ms.samples), "inference")
    starts = count(len(workload.runs), "start")
    return f"of {inferences} in {starts}, {count(record.runner.threads, 'thread')}"


def _verified(record: RunRecord) -> str:
    if record.verify_ms is None:
        return ", with a thorough check of the file"
    return f", after {duration(record.verify_ms)} for checking the file"


def _spread(spread: Spread, runs: Sequence[Start]) -> str:
    within = f"{_percent(spread.within_percent)} within a start"
    if spread.between_percent is None:
        return f"{within}; between starts it is not known: --runs 5 shows it"
    medians = [run.median_ms for run in runs]
    unit = unit_for(min(medians))
    shown = [unit.number(ms, like_ms=min(medians)) for ms in medians]
    if len(shown) > _MOST_MEDIANS:
        ends = (unit.number(ms, like_ms=min(medians)) for ms in (min(medians), max(medians)))
        listed = f"from {' to '.join(ends)}"
    else:
        listed = ", ".join(shown)
    return (
        f"{within}, {_percent(spread.between_percent)} between {len(runs)} starts: "
        f"medians {listed} {unit.name}"
    )


def _warmup(runs: Sequence[Start], what: str) -> str:
    least, most = min(run.warmup for run in runs), max(run.warmup for run in runs)
    number = count(most, what) if least == most else f"{least:,} to {most:,} {what}s"
    if all(run.steady is None for run in runs):
        return number
    if all(run.steady for run in runs):
        return f"{number}, until the times had stopped falling"
    return f"{number}; the times were STILL FALLING"


def _percent(value: float) -> str:
    return f"{value:.1f} %" if value < 9.95 else f"{value:.0f} %"


WIDTH = 100
"""Columns of a line at most; only paths may be longer."""
LABEL = 12
"""Columns of a label."""


def wrapped(label: str, lines: Sequence[str], indent: str = "  ") -> str:
    """Lines behind a label, each wrapped to the width."""
    start = f"{indent}{label:<{LABEL}} " if indent else ""
    found = []
    for line in lines:
        found += textwrap.wrap(
            line, WIDTH, initial_indent=start, subsequent_indent=" " * len(start),
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip
        start = " " * len(start)
    return "\n".join(found)


def indented(text: str) -> str:
    """A text whose lines begin where labels do."""
    return "\n".join(f"  {line}".rstrip() for line in text.splitlines())


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
