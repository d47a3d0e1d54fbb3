"""The page of a run: everything that is known of it, as blocks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from etdeploy.bench.records.generation import TextGeneration
from etdeploy.bench.records.performance import CooldownWait
from etdeploy.bench.records.record import RunRecord
from etdeploy.bench.verdict import explain
from etdeploy.core.console import count
from etdeploy.core.values import ReasonedChoice
from etdeploy.devices.base import DeviceState
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
    Folded,
    Page,
    PageSection,
    Record,
    Source,
    Table,
    Text,
    code,
    table,
)
from etdeploy.report.facts import (
    OUTPUT_TONES,
    SIMULATED,
    disturbances,
    generated_text,
    headline,
    record_notes,
    run_facts,
)
from etdeploy.report.formatting import duration, in_unit, size, time_unit
from etdeploy.report.plots_device import (
    cores_text,
    plot_device,
    plot_memory,
    plot_sustained,
    plot_threads,
)
from etdeploy.report.plots_latency import plot_histogram, plot_starts
from etdeploy.report.profile import methods_table, profile_blocks
from etdeploy.report.report_data import ReportData
from etdeploy.report.run import (
    point_blocks,
    run_title,
    sizes_table,
    statistics_table,
    threads_table,
)

# A device that reports its state once gives no line.
_LEAST_POINTS = 2
# More would push the plots off the first screen.
_SHOWN_NOTES = 2
_NAMES = {
    "cpu_count": "CPUs", "abi": "ABI", "os": "OS", "soc": "SoC", "emulated_cpu": "emulated CPU",
    "battery_percent": "battery level", "battery_celsius": "battery temperature",
    "battery_milliamps": "battery current", "battery_volts": "battery voltage",
    "usable_cpus": "usable CPUs",
}  # fmt: skip


def run_page(run: ReportData) -> Page:
    """Return everything that is known of a run, the most important first."""
    record = run.record
    facts = list(run_facts(record))
    sections = (
        PageSection("summary", "Summary", (Facts(tuple(f for f in facts if not f.value)),), True),
        *([] if record.simulated else _latency(run)),
        PageSection("profile", "Where the time goes", tuple(_profile(run))),
        PageSection("outputs", "Outputs", tuple(_outputs(record))),
        *([] if record.simulated else _further_passes(record)),
        PageSection("device", "Device", tuple(_device(record))),
        PageSection("options", "How the runner was built", tuple(_options(run))),
        PageSection("provenance", "Provenance", tuple(_provenance(run))),
        PageSection(
            "record", "Record", (Record(0, "All figures as JSON", f"{record.run_id}.json"),)
        ),
    )
    where = f"{formatting.device(record)} ({record.device.facts.name})"
    return Page(
        title=run_title(record),
        subtitle=f"{headline(record)}; {record.program.source}, {where}, "
        f"{formatting.utc_text(record.started_at)}",
        badges=tuple(_badges(run)),
        cards=tuple(_card(fact, lead=not i) for i, fact in enumerate(f for f in facts if f.value)),
        notices=tuple(_notices(run)),
        sections=tuple(section for section in sections if section.blocks),
        records=(record.model_dump(mode="json"),),
    )


def _card(fact: Fact, lead: bool) -> Card:
    number, unit = fact.value, ""
    if number[0].isdigit():
        number, _, unit = number.partition(" ")
    return Card(fact.label, number, unit, fact.lines, fact.tone, lead)


def _badges(run: ReportData) -> Iterator[Cell]:
    if run.record.simulated:
        yield Cell(SIMULATED, WARN)
    for kind in dict.fromkeys(each.kind for each in run.disturbances):
        yield Cell(formatting.kind(kind), WARN)
    if any(loss.is_high for loss in run.record.program.quantization_loss):
        yield Cell("high quantization loss", WARN)
    verdict = formatting.outputs(run.record)
    yield Cell(f"outputs {verdict}", OUTPUT_TONES.get(verdict, WARN))


def _notices(run: ReportData) -> Iterator[Text | Folded]:
    """The bottleneck, what disturbed the run, and the record's notes, many of them folded."""
    if run.profile:
        yield Text(run.profile.bottleneck, "info", "Bottleneck:")
    yield from disturbances(run.record)
    notes = tuple(record_notes(run.record))
    yield from notes if len(notes) <= _SHOWN_NOTES else (Folded(count(len(notes), "note"), notes),)


def _latency(run: ReportData) -> Iterator[PageSection]:
    record = run.record
    workload, starts, of = record.workload, record.workload.runs, formatting.sample(record.workload)
    if isinstance(workload, TextGeneration):
        blocks = list(point_blocks(workload))
        if text := generated_text(workload):
            blocks.append(Text(text, "info", "Text."))
        yield PageSection("tokens", "Tokens", tuple(blocks))
    histogram = plot_histogram("plot-latency", workload.timed, of)
    heading = of.time[0].upper() + of.time[1:]
    yield PageSection("latency", heading, (histogram, statistics_table(record)))
    blocks = [plot_starts("plot-starts", starts, workload.timed, of)]
    if len(starts) > 1:
        blocks.append(Folded(f"All {count(len(starts), 'start')} as a table", (_starts(record),)))
    yield PageSection("starts", "From start to start", tuple(blocks))


def _starts(record: RunRecord) -> Table:
    """Every start with its warm-up, its times, and what disturbed it."""
    starts, like = record.workload.runs, record.workload.timed.median
    unit = time_unit(like)
    cooled = any(start.cooldown for start in starts)
    rows = [
        [number, *(in_unit(unit, ms, like) for ms in (s.median_ms, s.stddev_ms)), s.samples,
         f"{s.warmup}, not steady" if s.steady is False else s.warmup, duration(s.load_ms),
         duration(s.first_inference_ms), *([_cooled(s.cooldown)] if cooled else []),
         Cell("; ".join(each.text for each in s.disturbances) or "none",
              WARN if s.disturbances else QUIET)]
        for number, s in enumerate(starts, 1)
    ]  # fmt: skip
    first = formatting.first_call_name(record.workload)
    columns = ("start", f"median {unit.name}", f"stddev {unit.name}", "samples", "warm-up", "load",
               first, *(["cooled"] if cooled else []), "disturbed by")  # fmt: skip
    return table("Starts", columns, rows, right=columns[:-1])


def _cooled(cooldown: CooldownWait | None) -> Cell:
    """The wait for a cool device."""
    if cooldown is None:
        return Cell(NOTHING)
    text = f"{cooldown.waited_s:.0f} s to {cooldown.to_celsius:.0f} °C"
    return Cell(text) if cooldown.reached else Cell(f"{text}, still hot", WARN)


def _profile(run: ReportData) -> Iterator[Block]:
    yield from map(Text, run.no_profile)
    if len(run.profiles) > 1:
        yield methods_table(run.profiles)
    for number, profile in enumerate(run.profiles):
        yield from profile_blocks(profile, f"-{profile.method}" if number else "")
    called = [(code(o.name), o.calls) for o in run.record.program.operator_calls if o.calls]
    if called:
        content = table("Kernels called", ("kernel", "calls"), called, right=("calls",))
        yield Folded(f"{count(len(called), 'kernel')} that the program calls", (content,))


def _outputs(record: RunRecord) -> Iterator[Block]:
    """Each output against the model's, with the limits; each size or text."""
    verdicts = {True: Cell("correct", GOOD), False: Cell("WRONG", BAD),
                None: Cell("not compared", WARN)}  # fmt: skip
    rows = [
        [code(check.name), code(f"{check.dtype} {list(check.shape)}"),
         verdicts[check.within_tolerance],
         ". ".join(part for part in (explain(check), check.remark) if part)]
        for check in record.workload.all_outputs
    ]  # fmt: skip
    if rows:
        columns = ("output", "type", "verdict", "difference")
        yield table("Outputs against the model's", columns, rows)
    else:
        yield Text("Nothing was compared: there are no expected outputs.")
    if not isinstance(record.workload, TextGeneration):
        if record.workload.sizes:
            yield sizes_table(record)
        return
    for text in record.workload.texts:
        if text.text is not None:
            words = " … ".join(map(formatting.one_line, (text.prompt, text.text)))
            yield Text(words, "info", f"{text.name}.")


def _further_passes(record: RunRecord) -> Iterator[PageSection]:
    """Passes that only some runs have."""
    workload, memory = record.workload, record.memory
    if not isinstance(workload, TextGeneration):
        if workload.threads:
            blocks = (
                plot_threads("plot-threads", workload.threads),
                threads_table(workload.threads),
            )
            yield PageSection("threads", "Threads", blocks)
        if workload.sustained:
            figure = plot_sustained("plot-sustained", workload.sustained)
            yield PageSection("sustained", "Sustained work", (figure,))
    if memory and len(memory.points) >= _LEAST_POINTS:
        yield PageSection("memory", "Memory", (plot_memory("plot-memory", memory),))


def _device(record: RunRecord) -> Iterator[Block]:
    """The device's facts, and its state during, before and after the run."""
    during = record.device.during
    figure = plot_device("plot-device", during) if len(during) >= _LEAST_POINTS else None
    if figure:
        yield figure
    facts = {name: value for name, value in record.device.facts if value is not None}
    facts |= {"memory_bytes": size(record.device.facts.memory_bytes)}
    yield Facts(tuple(Fact(_words(name), (str(value),)) for name, value in facts.items()))
    before, after = _state(record.device.before), _state(record.device.after)
    names = dict.fromkeys((*before, *after))
    rows = [[_words(name), before.get(name), after.get(name)] for name in names]
    if rows:
        yield table("State of the device", ("state", "before", "after"), rows)


def _state(state: DeviceState) -> dict[str, str]:
    simple = state.model_dump(exclude={"temperatures_celsius", "clusters"}, exclude_none=True)
    found = {name: _state_value(name, value) for name, value in simple.items()}
    if state.temperatures_celsius:
        hottest, celsius = max(state.temperatures_celsius.items(), key=lambda each: each[1])
        found["hottest sensor"] = f"{celsius:.1f} °C ({hottest})"
    for cluster in state.clusters:
        mhz = [
            NOTHING if khz is None else f"{khz / 1000:,.0f}"
            for khz in (cluster.current_khz, cluster.max_khz)
        ]
        frequencies = "" if set(mhz) == {NOTHING} else f"{mhz[0]} of {mhz[1]} MHz"
        if text := " ".join(part for part in (frequencies, cluster.governor) if part):
            found[cores_text(cluster.cpus)] = text
    return found


def _state_value(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name.endswith("_bytes"):
        return size(value)
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    units = {"_percent": " %", "_celsius": " °C", "_milliamps": " mA", "_volts": " V"}
    unit = next((text for end, text in units.items() if name.endswith(end)), "")
    return f"{formatting.number(value, 4) if isinstance(value, float) else value}{unit}"


def _words(name: str) -> str:
    return _NAMES.get(name) or name.removesuffix("_bytes").replace("_", " ")


def _options(run: ReportData) -> Iterator[Block]:
    """Components and cmake options with their reasons; without a plan, the options alone."""
    yield from map(Text, run.no_plan)
    plan = run.plan
    if plan is None:
        built = run.record.runner.options
        if built:
            pairs = [[code(name), code(value)] for name, value in built.items()]
            yield table("Options of the runner", ("option", "value"), pairs)
        return
    chosen = [plan.provider, *([plan.toolchain] if plan.toolchain else [])]
    rows = map(_explained, (*chosen, *plan.components))
    yield table("Components of the runner", ("component", "value", "why"), rows)
    if plan.options:
        content = table("Options", ("option", "value", "why"), map(_explained, plan.options))
        yield Folded(f"{count(len(plan.options), 'cmake option')} with reasons", (content,))


def _explained(each: ReasonedChoice) -> list[Cell | str]:
    by_hand = " (by hand)" if each.by_hand else ""
    return [code(each.name), code(each.value or ""), f"{each.reason}{by_hand}"]


def _provenance(run: ReportData) -> Iterator[Block]:
    """What defined the run, and with what it was made; the recipe with every value."""
    record, program = run.record, run.record.program
    dirty = ", with changes that are not committed" if record.recipe.git_dirty else ""
    names = {
        "Run": record.run_id,
        "Folder": run.run.folder.name,
        "Took turns with": record.interleaved_with,
        "Recipe": record.recipe.file,
        "Commit": f"{record.recipe.git_revision or 'not in a repository'}{dirty}",
        "Program": f"{program.sha256}, {size(program.size_bytes)}",
        "Runner": f"{record.runner.sha256}, {record.runner.target}",
    }
    passes = ", ".join(f"{name} {each.seconds:.1f} s" for name, each in record.passes.items())
    texts = {
        "Started": formatting.utc_text(record.started_at),
        "ExecuTorch": f"{record.runner.executorch_version} ({record.runner.provider})",
        "Versions": ", ".join(f"{tool} {version}" for tool, version in record.versions.items()),
        "Passes": passes,
    }
    facts = [Fact(label, (text,), code=True) for label, text in names.items() if text]
    yield Facts((*facts, *(Fact(label, (text,)) for label, text in texts.items())))
    recipe = json.dumps(formatting.finite(record.recipe.content), indent=2, ensure_ascii=False)
    yield Folded("The recipe, with every value", (Source(recipe),))
