"""A run as blocks: the summary in a terminal, and tables that the page shows too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from etdeploy.bench.records.generation import GenerationPoint, TextGeneration
from etdeploy.bench.records.outputs import OutputCheck
from etdeploy.bench.records.performance import ThreadsRecord
from etdeploy.bench.records.record import RunRecord, SizeRecord
from etdeploy.bench.records.stored import StoredRun
from etdeploy.bench.units import rate
from etdeploy.core.layout import cut
from etdeploy.report import formatting
from etdeploy.report.document import (
    BAD,
    GOOD,
    WARN,
    Block,
    Cell,
    Fact,
    Facts,
    Table,
    Text,
    code,
    table,
)
from etdeploy.report.facts import (
    SIMULATED,
    disturbances,
    headline,
    record_notes,
    run_facts,
)
from etdeploy.report.formatting import duration, in_unit, percent, size, time_unit

_LONGEST_DIMENSIONS = 40
_DEFINITIONS = {
    "first token": "from the prompt's token ids in hand until the first new token is chosen; "
    "without loading, tokenizing and filling the cache to `depth`",
    "prefill": "tokens of the prompt by the time to the first token",
    "decode": "tokens after the first by the time that they took, call and choice",
}
_POINT_COLUMNS: tuple[str, ...] = (
    "prompt", "new", "depth", "first token", "prefill tok/s", "decode tok/s", "per token", "p90",
)  # fmt: skip
_SPECULATION = {
    "tokens/call": "tokens after the first by the calls that they took",
    "accepted": "share of the proposed tokens that were right",
}


def summary(run: StoredRun) -> Iterator[Block]:
    """Return the summary that `etdeploy run` prints: tables, facts, notes and files."""
    record = run.record
    yield Text(f"{run_title(record)}: {headline(record)}")
    yield from _tables(record)
    yield Facts(tuple(run_facts(record)))
    yield from disturbances(record)
    yield from record_notes(record)
    others = [path for name, path in record.files.items() if name != "record"]
    yield Facts((Fact("files", (str(run.record_path), f"beside it: {', '.join(others)}")),))


def run_title(record: RunRecord) -> str:
    return f"{record.recipe.name} on {record.device.facts.name}"


def _tables(record: RunRecord) -> Iterator[Block]:
    workload = record.workload
    if isinstance(workload, TextGeneration):
        if not record.simulated:
            yield from point_blocks(workload)
        return
    if not record.simulated:
        yield statistics_table(record)
        if workload.threads:
            yield threads_table(workload.threads)
    if workload.sizes:
        yield sizes_table(record)


def statistics_table(record: RunRecord) -> Table:
    """The statistics of all samples in one unit."""
    latency = record.workload.timed
    unit = time_unit(latency.median)
    values = {
        "min": latency.min, "median": latency.median, "mean": latency.mean, "p90": latency.p90,
        "p99": latency.p99, "stddev": latency.stddev,
    }  # fmt: skip
    columns = [f"{name} {unit.name}" for name in values]
    row = [in_unit(unit, value, latency.median) for value in values.values()]
    of = formatting.sample(record.workload)
    return table(f"Statistics of the {of.time}", columns, [row], right=columns)


def point_blocks(workload: TextGeneration) -> Iterator[Block]:
    """Each point of generated text, medians over its generations, and what the columns mean."""
    rows = [
        [f"{p.prompt_tokens:,}", f"{p.new_tokens:,}", f"{p.depth:,}", duration(p.ttft_ms),
         rate(p.prefill_tokens_per_s),
         None if p.decode_tokens_per_s is None else rate(p.decode_tokens_per_s),
         duration(p.token_ms.median) if p.token_ms else None,
         duration(p.token_ms.p90) if p.token_ms else None]
        for p in workload.points
    ]  # fmt: skip
    columns = _POINT_COLUMNS
    if any(p.speculation for p in workload.points):
        columns = (*columns, *_SPECULATION)
        for row, point in zip(rows, workload.points, strict=True):
            row += _speculation_cells(point)
    yield table("Tokens", columns, rows, right=columns)
    definitions = _DEFINITIONS | (_SPECULATION if len(columns) > len(_POINT_COLUMNS) else {})
    yield Facts(tuple(Fact(term, (meaning,)) for term, meaning in definitions.items()))


def _speculation_cells(point: GenerationPoint) -> list[str | None]:
    found = point.speculation
    if found is None or found.tokens_per_call is None:
        return [None, None]
    share = found.acceptance_rate
    return [f"{found.tokens_per_call:.2f}", None if share is None else percent(100 * share)]


def threads_table(sweep: Sequence[ThreadsRecord]) -> Table:
    """Each number of threads in the order of the recipe; the speed-up is over the smallest."""
    fastest = min(sweep, key=lambda each: (each.latency_ms.median, each.threads))
    fewest_ms = min(sweep, key=lambda each: each.threads).latency_ms.median
    best_ms = fastest.latency_ms.median
    unit = time_unit(best_ms)
    rows = []
    for each in sweep:
        median_ms = each.latency_ms.median
        speed_up = f"{fewest_ms / median_ms:.2f} x" if median_ms > 0 else None
        times = [in_unit(unit, ms, best_ms) for ms in (median_ms, each.latency_ms.p90)]
        rows.append([
            each.threads, *times, percent(each.spread.between_percent),
            in_unit(unit, each.first_inference_ms, best_ms), speed_up,
            "fastest" if each is fastest else "",
        ])  # fmt: skip
    columns = ("threads", f"median {unit.name}", f"p90 {unit.name}", "spread",
               f"first {unit.name}", "speed-up", "remark")  # fmt: skip
    return table("Threads", columns, rows, right=columns[:-1])


def sizes_table(record: RunRecord) -> Table:
    """Latencies, peak memory and verdict of each size, in the order of the recipe."""
    sizes = record.inference.sizes
    if record.simulated:
        verdicts = [
            [code(each.name), _dimensions(each), SIMULATED, _size_verdict(each.outputs)]
            for each in sizes
        ]
        return table("Sizes", ("size", "dimensions", "latency", "outputs"), verdicts)
    like = min(each.latency_ms.median for each in sizes)
    unit = time_unit(like)
    rows = []
    for each in sizes:
        times = (each.latency_ms.median, each.latency_ms.p90, each.first_inference_ms)
        median, p90, first = (in_unit(unit, ms, like) for ms in times)
        rows.append([
            code(each.name), _dimensions(each), median, p90, percent(each.spread.between_percent),
            first, size(each.peak_rss_bytes), _size_verdict(each.outputs),
        ])  # fmt: skip
    columns = ("size", "dimensions", f"median {unit.name}", f"p90 {unit.name}", "spread",
               f"first {unit.name}", "memory", "outputs")  # fmt: skip
    return table("Sizes", columns, rows, right=columns[2:-1])


def _dimensions(each: SizeRecord) -> str:
    text = ", ".join(f"{name} {size}" for name, size in each.sizes.items()) or "the example's"
    return cut(text, _LONGEST_DIMENSIONS)


def _size_verdict(outputs: Sequence[OutputCheck]) -> Cell:
    verdicts = {check.within_tolerance for check in outputs}
    if False in verdicts:
        return Cell("WRONG", BAD)
    if not verdicts or None in verdicts:
        return Cell("not compared" if verdicts else "not checked", WARN)
    return Cell("correct", GOOD)
