"""The times of a run as text: their table, and how far they are apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from etdeploy.bench.records.generation import TextGeneration
from etdeploy.bench.records.record import RunRecord, Workload
from etdeploy.bench.records.starts import Spread, Start
from etdeploy.bench.units import duration, unit_for
from etdeploy.core.console import count, table

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
    """Labels with texts: the spread within and between the starts, and their warm-up.

    Records of older releases have neither.
    """
    if workload.spread:
        yield "spread", _spread(workload.spread, workload.runs)
    if workload.runs:
        what = "generation" if isinstance(workload, TextGeneration) else "inference"
        yield "warm-up", _warmup(workload.runs, what)


def between(spread: Spread | None) -> str | None:
    """The spread between starts for a table; None where it is not known."""
    if spread is None or spread.between_percent is None:
        return None
    return _percent(spread.between_percent)


def _timed(record: RunRecord) -> str:
    workload = record.inference
    inferences = count(len(workload.latency_ms.samples), "inference")
    starts = f" in {count(len(workload.runs), 'start')}" if workload.runs else ""
    return f"of {inferences}{starts}, {count(record.runner.threads, 'thread')}"


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
