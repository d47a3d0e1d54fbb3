"""The summary of one run: its figures as cards, and what to know before reading them."""

from __future__ import annotations

from collections.abc import Iterator

from etdeploy.bench.outputs.verdict import explain, strain, uncompared_outputs, wrong_outputs
from etdeploy.bench.records.generation import TextGeneration
from etdeploy.bench.records.performance import Latency, Spread
from etdeploy.bench.records.record import RunRecord
from etdeploy.bench.units import rate as per_s
from etdeploy.core.console import count
from etdeploy.report import formatting
from etdeploy.report.formatting import disturbed_lines, verdict_lines
from etdeploy.report.html.blocks import BAD, GOOD, QUIET, WARN, Card, Cell, Folded, Text
from etdeploy.report.report_data import Material

# More would push the plots off the first screen.
_SHOWN_NOTES = 2
_TONES = {"WRONG": BAD, "correct": GOOD}


def cards(run: Material) -> tuple[Card, ...]:
    """The figures of a run, the one that it is about first."""
    record = run.record
    times = () if record.simulated else tuple(_times(record))
    lead = Card("latency", "simulated", "", (_by(record),), QUIET, lead=True)
    return (*(times or (lead,)), *_memory(record), outputs_card(record), _device(record))


def badges(run: Material) -> tuple[Cell, ...]:
    """What a reader must not miss, beside the title."""
    record = run.record
    verdict = formatting.outputs(record)
    found = [Cell("simulated", WARN)] if record.simulated else []
    kinds = dict.fromkeys(map(formatting.disturbance, run.disturbances))
    found += [Cell(kind, WARN) for kind in kinds]
    if any(loss.is_high for loss in record.program.quantization_loss):
        found.append(Cell("high quantisation loss", WARN))
    words = {"WRONG": "outputs WRONG", "correct": "outputs correct"}.get(verdict)
    return (*found, Cell(words or f"outputs {verdict}", _TONES.get(verdict, WARN)))


def notices(run: Material) -> tuple[Text | Folded, ...]:
    """The bottleneck, a line for each kind of disturbance, and the record's notes, folded."""
    found = [Text(run.profile.bottleneck, "info", "Bottleneck.")] if run.profile else []
    found += [Text(line, WARN, "Disturbed:") for line in disturbed_lines(run.record)]
    notes = tuple(Text(note, "info") for note in run.record.notes)
    few = len(notes) <= _SHOWN_NOTES
    return (*found, *(notes if few else (Folded(count(len(notes), "note"), notes),)))


def outputs_card(record: RunRecord) -> Card:
    """The verdict on the outputs, with the one that is nearest to its limits."""
    verdict = formatting.outputs(record)
    lines: list[str] = []
    wrong, every = wrong_outputs(record), record.workload.all_outputs
    if wrong:
        lines.append(f"{len(wrong)} of {len(every)} differ from the model's")
        lines.append(explain(max(wrong, key=strain)))
    elif not record.workload.outputs_compared:
        text = isinstance(record.workload, TextGeneration)
        lines.append(f"there are no expected {'token ids' if text else 'outputs'}")
    elif isinstance(record.workload, TextGeneration):
        lines += [line.removeprefix("correct: ") for line in verdict_lines(record.workload)][:2]
    else:
        compared = [check for check in every if check.within_tolerance]
        lines.append(f"{count(len(compared), 'output')} within tolerance")
        if compared:
            lines.append(explain(max(compared, key=strain)).partition(" (")[0])
        if missing := uncompared_outputs(record):
            lines.append(f"{count(len(missing), 'output')} not compared")
    return Card("outputs", verdict, "", tuple(lines), _TONES.get(verdict, WARN))


def _times(record: RunRecord) -> Iterator[Card]:
    workload, starts = record.workload, record.workload.runs
    if isinstance(workload, TextGeneration):
        yield from _rates(workload, count(record.runner.threads, "thread"))
    else:
        yield _latency(workload.latency_ms, len(starts), record.runner.threads)
    yield _spread(record.workload.spread, len(starts))
    yield _timed("load", record.load_ms, f"program and {formatting.loaded(workload)}")
    yield _timed(formatting.first_of(workload), workload.first_ms, "before any warm-up")


def _rates(workload: TextGeneration, threads: str) -> Iterator[Card]:
    """Decode and prefill at the first point."""
    first, tokens = workload.first, workload.first.token_ms
    decoded = first.decode_tokens_per_s
    if decoded is not None and tokens:
        lines = (
            f"{formatting.duration(tokens.median)} per token, "
            f"p90 {formatting.duration(tokens.p90)}",
            f"{first.label}; {threads}",
        )
        yield Card("decode", per_s(decoded), "tokens/s", lines, lead=True)
    lines = (f"first token after {formatting.duration(first.ttft_ms)}", first.label)
    yield Card("prefill", per_s(first.prefill_tokens_per_s), "tokens/s", lines, lead=not decoded)


def _latency(latency: Latency, starts: int, threads: int) -> Card:
    unit = formatting.unit_of(latency.median)
    p90, p99 = (formatting.in_unit(unit, t, latency.median) for t in (latency.p90, latency.p99))
    lines = (
        f"p90 {p90}, p99 {p99} {unit.name}; {rate(latency.median)}",
        f"median of {count(len(latency.samples), 'inference')} in {count(starts, 'start')}, "
        f"{count(threads, 'thread')}",
    )
    return Card("latency", formatting.in_unit(unit, latency.median), unit.name, lines, lead=True)


def rate(median_ms: float) -> str:
    """Inferences per second."""
    if not formatting.is_number(median_ms) or median_ms <= 0:
        return "countless per second"
    per_s = 1000 / median_ms
    return f"{per_s:,.0f} per second" if per_s >= 100 else f"{per_s:.3g} per second"


def _percent(value: float | None) -> tuple[str, str]:
    number, _, unit = formatting.percent(value).partition(" ")
    return number, unit


def _spread(spread: Spread, starts: int) -> Card:
    label = "spread between starts"
    within = f"{formatting.percent(spread.within_percent)} within a start"
    if spread.between_percent is None:
        lines = (within, "one start cannot show it: --runs 5")
        return Card(label, "unknown", "", lines, QUIET)
    lines = (within, f"standard deviation by median, {starts} starts")
    return Card(label, *_percent(spread.between_percent), lines)


def _timed(label: str, value_ms: float, line: str) -> Card:
    number, _, unit = formatting.duration(value_ms).partition(" ")
    return Card(label, number, unit, (line,))


def _memory(record: RunRecord) -> Iterator[Card]:
    memory = record.memory
    peak = memory.peak_rss_bytes if memory else record.peak_rss_bytes
    if record.simulated or (peak is None and memory is None):
        return
    number, _, unit = formatting.size(peak).partition(" ")
    lines = ["resident, program and runner"]
    if memory and memory.peak_pss_bytes is not None:
        lines.append(f"PSS {formatting.size(memory.peak_pss_bytes)}")
    if memory and memory.planned_bytes is not None:
        lines.append(f"planned by the program {formatting.size(memory.planned_bytes)}")
    yield Card("peak memory", number, unit, tuple(lines))


def _device(record: RunRecord) -> Card:
    facts = record.device.facts
    parts = (facts.soc, facts.os, count(facts.cpu_count, "CPU") if facts.cpu_count else None)
    lines = tuple(part for part in parts if part)
    return Card("device", formatting.device(record), "", (facts.name, *lines))


def _by(record: RunRecord) -> str:
    if record.simulated is None:
        return ""
    soc = f" for {record.simulated.soc}" if record.simulated.soc else ""
    return f"by {record.simulated.by}{soc}: no time of a device"
