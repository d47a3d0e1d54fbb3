"""The summary of one run: its figures as cards, and what to know before reading them."""

from __future__ import annotations

from collections.abc import Iterator

from etdeploy.bench.outputs.verdict import explain, strain, uncompared_outputs, wrong_outputs
from etdeploy.bench.records.record import RunRecord
from etdeploy.bench.records.starts import Spread
from etdeploy.core.console import count
from etdeploy.report import shown
from etdeploy.report.html.blocks import BAD, GOOD, QUIET, WARN, Card, Cell, Text
from etdeploy.report.material import Material, spread_of, starts_of

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
    verdict = shown.outputs(record)
    found = [Cell("simulated", WARN)] if record.simulated else []
    kinds = dict.fromkeys(map(shown.disturbance, run.disturbances))
    found += [Cell(kind, WARN) for kind in kinds]
    words = {"WRONG": "outputs WRONG", "correct": "outputs correct"}.get(verdict)
    return (*found, Cell(words or f"outputs {verdict}", _TONES.get(verdict, WARN)))


def notices(run: Material) -> tuple[Text, ...]:
    """The bottleneck, what disturbed the run, and the record's notes."""
    found = [Text(run.profile.bottleneck, "info", "Bottleneck.")] if run.profile else []
    whole = [Text(each.text, WARN, "Disturbed.") for each in run.record.disturbances]
    starts = [
        Text(each.text, WARN, f"Start {number} was disturbed.")
        for number, start in enumerate(run.record.workload.runs, 1)
        for each in start.disturbances
    ]
    return (*found, *whole, *_bounded(starts), *(Text(note, "info") for note in run.record.notes))


def _bounded(starts: list[Text]) -> list[Text]:
    """The first few: the plot of the starts marks them all."""
    if len(starts) <= 3:
        return starts
    more = f"and so were {count(len(starts) - 3, 'more start')}; see the plot of the starts."
    return [*starts[:3], Text(more, WARN, "Disturbed,")]


def outputs_card(record: RunRecord) -> Card:
    """The verdict on the outputs, with the one that is nearest to its limits."""
    verdict = shown.outputs(record)
    lines: list[str] = []
    wrong, every = wrong_outputs(record), record.workload.all_outputs
    if wrong:
        lines.append(f"{len(wrong)} of {len(every)} differ from the model's")
        lines.append(explain(max(wrong, key=strain)))
    elif not record.workload.outputs_compared:
        lines.append("there are no expected outputs")
    else:
        compared = [check for check in every if check.within_tolerance]
        lines.append(f"{count(len(compared), 'output')} within tolerance")
        if compared:
            lines.append(explain(max(compared, key=strain)).partition(" (")[0])
        if missing := uncompared_outputs(record):
            lines.append(f"{count(len(missing), 'output')} not compared")
    return Card("outputs", verdict, "", tuple(lines), _TONES.get(verdict, WARN))


def _times(record: RunRecord) -> Iterator[Card]:
    latency, spread, starts = record.workload.latency_ms, spread_of(record), starts_of(record)
    unit = shown.unit_of(latency.median)
    p90, p99 = (shown.in_unit(unit, t, latency.median) for t in (latency.p90, latency.p99))
    lines = (
        f"p90 {p90}, p99 {p99} {unit.name}; {rate(latency.median)}",
        f"median of {count(len(latency.samples), 'inference')} in {count(len(starts), 'start')}, "
        f"{count(record.runner.threads, 'thread')}",
    )
    yield Card("latency", shown.in_unit(unit, latency.median), unit.name, lines, lead=True)
    yield _spread(spread, len(starts))
    yield _timed("load", record.load_ms, "program and method")
    yield _timed("first inference", record.workload.first_inference_ms, "before any warm-up")


def rate(median_ms: float) -> str:
    """Inferences per second."""
    if not shown.is_number(median_ms) or median_ms <= 0:
        return "countless per second"
    per_s = 1000 / median_ms
    return f"{per_s:,.0f} per second" if per_s >= 100 else f"{per_s:.3g} per second"


def _percent(value: float | None) -> tuple[str, str]:
    number, _, unit = shown.percent(value).partition(" ")
    return number, unit


def _spread(spread: Spread, starts: int) -> Card:
    label = "spread between starts"
    within = f"{shown.percent(spread.within_percent)} within a start"
    if spread.between_percent is None:
        lines = (within, "one start cannot show it: --runs 5")
        return Card(label, "unknown", "", lines, QUIET)
    lines = (within, f"standard deviation by median, {starts} starts")
    return Card(label, *_percent(spread.between_percent), lines)


def _timed(label: str, value_ms: float, line: str) -> Card:
    number, _, unit = shown.duration(value_ms).partition(" ")
    return Card(label, number, unit, (line,))


def _memory(record: RunRecord) -> Iterator[Card]:
    memory = record.memory
    peak = memory.peak_rss_bytes if memory else record.peak_rss_bytes
    if record.simulated or (peak is None and memory is None):
        return
    number, _, unit = shown.size(peak).partition(" ")
    lines = ["resident, program and runner"]
    if memory and memory.peak_pss_bytes is not None:
        lines.append(f"PSS {shown.size(memory.peak_pss_bytes)}")
    if memory and memory.planned_bytes is not None:
        lines.append(f"planned by the program {shown.size(memory.planned_bytes)}")
    yield Card("peak memory", number, unit, tuple(lines))


def _device(record: RunRecord) -> Card:
    facts = record.device.facts
    parts = (facts.soc, facts.os, count(facts.cpu_count, "CPU") if facts.cpu_count else None)
    lines = tuple(part for part in parts if part)
    return Card("device", shown.device(record), "", (facts.name, *lines))


def _by(record: RunRecord) -> str:
    if record.simulated is None:
        return ""
    soc = f" for {record.simulated.soc}" if record.simulated.soc else ""
    return f"by {record.simulated.by}{soc}: no time of a device"
