"""Several runs as blocks: a table with a row each, and their comparison with the first."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from etdeploy.bench.records.generation import TextGeneration
from etdeploy.bench.records.record import RunRecord
from etdeploy.bench.units import TimeUnit, rate
from etdeploy.compare.model import (
    ComparedRun,
    Comparison,
    OperatorChange,
    OutputDifference,
    Statistic,
    Verdict,
)
from etdeploy.core.console import count
from etdeploy.report import formatting
from etdeploy.report.document import (
    BAD,
    GOOD,
    NOTHING,
    QUIET,
    WARN,
    Block,
    Card,
    Cell,
    Fact,
    Facts,
    Page,
    PageSection,
    Record,
    Table,
    Text,
    code,
    table,
)
from etdeploy.report.facts import OUTPUT_TONES, SIMULATED, disturbance_kinds
from etdeploy.report.formatting import in_unit, percent, ratio_text, time_unit
from etdeploy.report.plots_latency import MOST_CURVES, plot_distributions, plot_ratios, plot_runs
from etdeploy.report.profile import compared_table
from etdeploy.report.report_data import Report, ReportData

# More cards than that are no summary; the table has every run.
_MOST_CARDS = 8
# Columns of a table that a person can still read.
_MOST_COLUMNS = 6
_MOST_PAIRS, _MOST_OUTPUTS = 20, 5
_RATE = "decode tok/s"
_TONES = {
    Verdict.FASTER: GOOD,
    Verdict.SLOWER: BAD,
    Verdict.NO_DIFFERENCE: QUIET,
    Verdict.NOT_COMPARABLE: WARN,
}


@dataclass(frozen=True)
class Row:
    """One run or job: its names, and its record or the reason why there is none."""

    recipe: str
    device: str
    record: RunRecord | None = None
    failure: str = ""


def runs_table(rows: Sequence[Row]) -> Table:
    """Return latencies, load time, peak memory and verdict of each run.

    Of generated text, the median is that of the time per token, and `first` the time to first token
    after the warm-up. The spread is that between starts. What disturbed a run is marked in its last
    column. All times are in one unit, so that columns can be compared, and without text the table
    fits 80 columns.
    """
    records = [row.record for row in rows if row.record and not row.record.simulated]
    unit = time_unit(max((record.workload.timed.median for record in records), default=0.0))
    median, first, load = (f"{name} {unit.name}" for name in ("median", "first", "load"))
    numbers: tuple[str, ...] = (median, "spread", first, load, "memory")
    if with_text := any(isinstance(record.workload, TextGeneration) for record in records):
        numbers = (_RATE, *numbers)
    cells = [
        [code(row.recipe), code(row.device), *([_decoded(row.record)] if with_text else []),
         *_numbers(row.record, unit), _verdict(row)]
        for row in rows
    ]  # fmt: skip
    return table("Runs", ("recipe", "device", *numbers, "outputs"), cells, right=numbers)


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
        in_unit(unit, workload.timed.median),
        percent(workload.spread.between_percent),
        in_unit(unit, first_ms),
        in_unit(unit, record.load_ms),
        formatting.size(record.peak_rss_bytes),
    )


def _decoded(record: RunRecord | None) -> str | None:
    """Tokens per second; None for a run that generates none."""
    if record is None or record.simulated or not isinstance(record.workload, TextGeneration):
        return None
    decoded = record.workload.first.decode_tokens_per_s
    return None if decoded is None else rate(decoded)


def _verdict(row: Row) -> Cell:
    if row.record is None:
        return Cell(row.failure)
    verdict = formatting.outputs(row.record)
    loss = any(each.is_high for each in row.record.program.quantization_loss)
    words = (verdict, "high quantization loss" if loss else "", disturbance_kinds(row.record))
    return Cell(", ".join(filter(None, words)), OUTPUT_TONES.get(verdict, ""))


def comparison_text(comparison: Comparison) -> Iterator[Block]:
    """Return the verdict on two runs and what it rests on, for a terminal."""
    yield Text(headline(comparison))
    yield _sides(comparison)
    yield from _comparison(comparison)
    records = [
        Fact(f"record {letter}", (side.record,))
        for letter, side in (("A", comparison.a), ("B", comparison.b)) if side.record
    ]  # fmt: skip
    yield from (Text(remark, title="note") for remark in comparison.remarks)
    yield Facts(tuple(records))


def headline(comparison: Comparison) -> str:
    """Return the verdict with the ratio and its bounds, or with the reason without a ratio."""
    ratio = comparison.ratio
    if ratio is None:
        return f"{comparison.verdict}: {comparison.reason}"
    bounds = "with unknown confidence"
    if ratio.low is not None and ratio.high is not None:
        bounds = f"between {ratio.low:.3f} and {ratio.high:.3f} with 95 % confidence"
    return f"{comparison.verdict}: B takes {ratio.median:.3f} times as long as A, {bounds}"


def _sides(comparison: Comparison) -> Table:
    like = comparison.a.median_ms
    unit = time_unit(like)
    sides: list[tuple[str, ComparedRun]] = [("A", comparison.a), ("B", comparison.b)]
    rows = [
        [letter, side.name, in_unit(unit, side.median_ms, like), side.starts,
         percent(side.spread_percent), side.run_id]
        for letter, side in sides
    ]  # fmt: skip
    columns = ("", "recipe", f"median {unit.name}", "starts", "between starts", "run")
    return table("Sides", columns, rows, right=columns[2:5])


def _comparison(comparison: Comparison) -> Iterator[Block]:
    """Pairs, operators and outputs of two runs, and what differs between them."""
    if comparison.pairs:
        yield _pairs(comparison)
    if comparison.operators:
        yield _operators(comparison.operators)
    facts = [Fact("reason", (comparison.reason,))] if comparison.ratio else []
    if comparison.differences:
        facts.append(Fact("A -> B", comparison.differences))
    if comparison.outputs:
        lines = [_output(each) for each in comparison.outputs[:_MOST_OUTPUTS]]
        more = len(comparison.outputs) - _MOST_OUTPUTS
        lines += [f"and {more:,} more: etdeploy compare --json prints all"] if more > 0 else []
        facts.append(Fact("outputs", tuple(lines)))
    if facts:
        yield Facts(tuple(facts))


def _pairs(comparison: Comparison) -> Table:
    pairs, like = comparison.pairs, comparison.a.median_ms
    unit = time_unit(like)
    of = "" if comparison.statistic == Statistic.MEDIAN else f"{comparison.statistic} "
    columns = ("pair", f"A {of}{unit.name}", f"B {of}{unit.name}", "B by A")
    rows = [
        [number, *(in_unit(unit, ms, like) for ms in (pair.a_ms, pair.b_ms)), f"{pair.ratio:.3f}"]
        for number, pair in enumerate(pairs[:_MOST_PAIRS], 1)
    ]
    more = len(pairs) - len(rows)
    below = f"and {more:,} more: etdeploy compare --json prints all" if more else ""
    return table("Pairs of starts", columns, rows, right=columns, more=below)


def _operators(changes: Sequence[OperatorChange]) -> Table:
    """Times of a traced inference, the largest change first."""
    largest = max(max(change.a_ms or 0.0, change.b_ms or 0.0) for change in changes)
    unit = time_unit(largest)
    rows = []
    for change in changes:
        by = (change.b_ms or 0.0) - (change.a_ms or 0.0)
        times = [in_unit(unit, ms, largest) for ms in (change.a_ms, change.b_ms)]
        signed = f"{'-' if by < 0 else '+'}{in_unit(unit, abs(by), largest)}"
        rows.append([code(change.name), *times, signed, code(change.module)])
    columns = ("operator", f"A {unit.name}", f"B {unit.name}", "change", "module")
    return table("Operators that changed most", columns, rows, right=columns[1:4])


def _output(difference: OutputDifference) -> str:
    if difference.problem and difference.max_abs_error is None:
        return f"{difference.name} of A and B cannot be compared: {difference.problem}"
    parts = []
    if difference.max_abs_error is not None:
        parts.append(f"largest difference {difference.max_abs_error:.3g}")
    if difference.cosine_similarity is not None:
        parts.append(f"cosine similarity {difference.cosine_similarity:.6g}")
    parts += [difference.problem] if difference.problem else []
    text = ", ".join(parts) or "no value that is a number in both"
    is_equal = difference.max_abs_error == 0 and difference.problem is None
    return f"{difference.name}, B against A: {'equal' if is_equal else text}"


def several_page(report: Report) -> Page:
    """Return verdicts first, then what they rest on."""
    first, runs = report.runs[0], report.runs
    sections = [
        PageSection("verdicts", "Verdicts", tuple(_verdicts(report)), is_open=True),
        PageSection("latency", "Latency", tuple(_latency(runs))),
        PageSection("profile", "Where the time goes", tuple(_profile(runs))),
        PageSection("differences", "What differs", tuple(_differences(runs))),
        *(
            PageSection(f"run-{i}", f"{run.name} (B) against {first.name} (A)", tuple(blocks))
            for i, (run, c) in enumerate(zip(runs[1:], report.comparisons, strict=True), 1)
            if (blocks := list(_comparison(c)))
        ),
        PageSection("records", "Records", tuple(
            Record(i, run.name, f"{run.record.run_id}.json") for i, run in enumerate(runs)
        )),
    ]  # fmt: skip
    verdicts = dict.fromkeys(c.verdict for c in report.comparisons)
    return Page(
        title=f"{count(len(runs), 'run')} compared",
        subtitle=f"measured against {first.name}",
        badges=tuple(Cell(str(verdict), _TONES[verdict]) for verdict in verdicts),
        cards=tuple(_cards(report)) if len(runs) <= _MOST_CARDS else (),
        notices=tuple(_notices(runs)),
        sections=tuple(section for section in sections if section.blocks),
        records=tuple(run.record.model_dump(mode="json") for run in runs),
    )


def _cards(report: Report) -> Iterator[Card]:
    for run, comparison in zip(report.runs, (None, *report.comparisons), strict=True):
        lines, tone = ["baseline"], ""
        if comparison:
            ratio = f": x {ratio_text(comparison)}" if comparison.ratio else ""
            lines, tone = [f"{comparison.verdict}{ratio}"], _TONES[comparison.verdict]
        if run.record.simulated:
            yield Card(run.name, SIMULATED, "", tuple(lines), QUIET)
            continue
        number, _, unit = formatting.duration(run.record.workload.timed.median).partition(" ")
        between, starts = run.record.workload.spread.between_percent, run.record.workload.runs
        spread = f"{percent(between)} between {len(starts)} starts"
        lines += ["one start" if between is None else spread]
        lines.append(f"outputs {formatting.outputs(run.record)}")
        yield Card(run.name, number, unit, tuple(lines), tone)


def _notices(runs: Sequence[ReportData]) -> Iterator[Text]:
    kinds = {run.name: dict.fromkeys(each.kind for each in run.disturbances) for run in runs}
    marked = [f"{n} ({', '.join(map(formatting.kind, found))})" for n, found in kinds.items()
              if found]  # fmt: skip
    if marked:
        yield Text(f"{'; '.join(marked)}.", WARN, "Disturbed:")


def _verdicts(report: Report) -> Iterator[Block]:
    names = [run.name for run in report.runs[1:]]
    if figure := plot_ratios("plot-ratios", names, report.comparisons):
        yield figure
    rows = [
        [code(run.name), ratio_text(c) if c else "1",
         Cell(str(c.verdict), _TONES[c.verdict]) if c else Cell("baseline", QUIET),
         c.reason if c else ""]
        for run, c in zip(report.runs, (None, *report.comparisons), strict=True)
    ]  # fmt: skip
    yield table("Runs and verdicts", ("run", "ratio", "verdict", "why"), rows, right=("ratio",))
    yield runs_table([Row(run.name, run.record.device.facts.name, run.record)
                      for run in report.runs])  # fmt: skip
    about: dict[str, list[str]] = {}
    for name, comparison in zip(names, report.comparisons, strict=True):
        for remark in comparison.remarks:
            about.setdefault(remark, []).append(name)
    yield from (Text(f"{', '.join(found)}: {remark}") for remark, found in about.items())


def _latency(runs: Sequence[ReportData]) -> Iterator[Block]:
    timed = [run for run in runs if not run.record.simulated]
    if not timed:
        yield Text("No run has times: all were simulated.")
        return
    if len(timed) <= MOST_CURVES:
        yield plot_distributions("plot-distributions", timed)
    yield plot_runs("plot-runs", timed)


def _profile(runs: Sequence[ReportData]) -> Iterator[Block]:
    profiled = [run for run in runs if run.profile]
    for run in runs:
        if run.profile is None and profiled:
            yield from (Text(f"{run.name}: {text}") for text in run.no_profile)
    if len(profiled) < 2:
        yield Text("Operators are not compared: that needs the profiles of at least two runs.")
        return
    shown = profiled[:_MOST_COLUMNS]
    if len(profiled) > len(shown):
        yield Text(f"The operators of the first {len(shown)} runs; name fewer to see others.")
    profiles = [run.profile for run in shown if run.profile]
    yield compared_table("operators", [run.name for run in shown], profiles)


def _differences(runs: Sequence[ReportData]) -> Iterator[Block]:
    shown = runs[:_MOST_COLUMNS]
    found = differences([run.record for run in shown])
    if len(runs) > len(shown):
        yield Text(f"Between the first {len(shown)} runs; name fewer to see others.")
    if not found:
        yield Text("Nothing: recipe, program, runner, versions and device are the same.")
        return
    rows = [[code(key), *(code(value) for value in values)] for key, values in found.items()]
    names = tuple(run.name for run in shown)
    yield table("What differs between the runs", ("value", *names), rows)


_LONGEST = 80


def differences(records: Sequence[RunRecord]) -> dict[str, tuple[str, ...]]:
    """The values that are not the same in all records, by name; a dash where one has none.

    Of every run, its recipe with all values, what ran, what ran it, on what.
    """
    each = [dict(_values(record)) for record in records]
    names = dict.fromkeys(name for values in each for name in values)
    found = {name: tuple(values.get(name, NOTHING) for values in each) for name in names}
    return {name: values for name, values in found.items() if len(set(values)) > 1}


def _values(record: RunRecord) -> Iterator[tuple[str, str]]:
    program, runner, facts = record.program, record.runner, record.device.facts
    yield from _flat("recipe", record.recipe.content)
    yield "recipe.commit", record.recipe.git_revision or NOTHING
    yield "recipe.uncommitted changes", str(record.recipe.git_dirty).lower()
    yield from _flat("device", facts.model_dump(mode="json", exclude_none=True))
    keys = {"sha256", "size_bytes", "method", "backend", "quantization", "source"}
    yield from _flat("program", program.model_dump(mode="json", include=keys))
    yield from _flat("runner", runner.model_dump(mode="json"))
    yield from _flat("versions", record.versions)
    yield "simulated", record.simulated.by if record.simulated else "no"


def _flat(prefix: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _flat(f"{prefix}.{key}", each)
        return
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    # Two long values may differ at their ends only: those have to stay visible.
    half = _LONGEST // 2
    yield prefix, text if len(text) <= _LONGEST else f"{text[:half]}…{text[-half:]}"
