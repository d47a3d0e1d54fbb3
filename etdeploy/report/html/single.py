"""The page about one run."""

from __future__ import annotations

from collections.abc import Iterator

from etdeploy.bench.records.generation import TextGeneration
from etdeploy.profile.model import Profile
from etdeploy.report import generation, shown
from etdeploy.report.html.blocks import Block, Figure, Page, Record, Section, Text
from etdeploy.report.html.cards import badges, cards, notices
from etdeploy.report.html.figures.curves import memory_curve, sustained_curve, threads_curve
from etdeploy.report.html.figures.device import device_over_time
from etdeploy.report.html.figures.latency import distribution, run_to_run
from etdeploy.report.html.figures.modules import icicle, shares_bar
from etdeploy.report.html.operators import operators_table
from etdeploy.report.html.tables import (
    device_state,
    latencies,
    methods_table,
    modules_table,
    options,
    outputs,
    placement,
    points_table,
    provenance,
    recipe_source,
    shares_table,
    sizes,
    starts_table,
    threads_table,
)
from etdeploy.report.material import Material, starts_of
from etdeploy.report.texts import one_line, original_lines, quality_of

# A device that reports its state once gives no line.
_LEAST_POINTS = 2


def single_page(run: Material) -> Page:
    """Everything that is known of a run, the most important first."""
    record = run.record
    sections = [
        *([] if record.simulated else _latency(run)),
        Section("profile", "Where the time goes", tuple(_profile(run))),
        Section("outputs", "Outputs", tuple(_outputs(run))),
        *_measured_further(run),
        Section("device", "Device", tuple(_device(run))),
        Section("options", "How the runner was built", tuple(_options(run))),
        Section("provenance", "Provenance", (provenance(run), recipe_source(record))),
        Section("record", "Record", (Record(0, "All figures as JSON", f"{record.run_id}.json"),)),
    ]
    where = f"{shown.device(record)} ({record.device.facts.name})"
    return Page(
        title=f"{record.recipe.name} on {record.device.facts.name}",
        subtitle=f"{record.program.source}, {where}, {shown.moment(record.started_at)}",
        badges=badges(run),
        cards=cards(run),
        notices=notices(run),
        sections=tuple(section for section in sections if section.blocks),
        records=(record.model_dump(mode="json"),),
    )


def _latency(run: Material) -> Iterator[Section]:
    record = run.record
    workload, starts, of = record.workload, starts_of(record), shown.sample(record.workload)
    if isinstance(workload, TextGeneration):
        yield Section("tokens", "Tokens", tuple(_tokens(workload)))
    histogram = distribution("plot-latency", workload.timed, of)
    heading = of.time[0].upper() + of.time[1:]
    yield Section("latency", heading, (histogram, latencies(record)))
    blocks: list[Block] = [run_to_run("plot-starts", starts, workload.timed, of)]
    if len(starts) > 1:
        blocks.append(starts_table(record))
    yield Section("starts", "From start to start", tuple(blocks))


def _tokens(workload: TextGeneration) -> Iterator[Block]:
    """The grid with what its numbers mean, and the text."""
    yield points_table(workload)
    yield from (Text(f"{term}: {text}.") for term, text in generation.DEFINITIONS.items())
    if text := generation.told_text(workload):
        yield Text(text, "info", "Text.")


def _profile(run: Material) -> Iterator[Block]:
    yield from map(Text, run.no_profile)
    if len(run.profiles) > 1:
        yield methods_table(run.profiles)
    for number, profile in enumerate(run.profiles):
        yield from _profile_of(profile, f"-{profile.method}" if number else "")
    yield placement(run.record)


def _profile_of(profile: Profile, key: str) -> Iterator[Block]:
    """One method's profile; `key` tells the blocks of several apart."""
    yield Text(_traced(profile), title=f"{profile.method}." if profile.text else "")
    if profile.shares:
        yield shares_bar(f"plot-shares{key}", profile.shares)
        yield shares_table(profile.shares, profile.inference_ms)
    if profile.modules:
        yield icicle(f"plot-modules{key}", profile, profile.modules)
        yield modules_table(profile.modules, profile.inference_ms)
    if profile.operators:
        yield operators_table(f"operators{key}", profile)
    yield from (Text(note) for note in profile.notes)


def _traced(profile: Profile) -> str:
    what = profile.text.where if profile.text else f"{profile.inferences:,} traced inferences"
    text = (
        f"Mean of {what}, {shown.duration(profile.inference_ms)} each, "
        f"{shown.percent(100 * profile.outside_delegates)} of it outside of delegates."
    )
    if profile.untraced_ms is None:
        return text
    return f"{text} Without the tracer, the median is {shown.duration(profile.untraced_ms)}."


def _outputs(run: Material) -> Iterator[Block]:
    record = run.record
    if record.workload.all_outputs:
        yield outputs(record)
    else:
        yield Text("Nothing was compared: there are no expected outputs.")
    if isinstance(record.workload, TextGeneration):
        yield from _texts(record.workload)
    elif record.workload.sizes:
        yield sizes(record)
    yield from (Text(f"{line}.") for line in quality_of(record))


def _texts(workload: TextGeneration) -> Iterator[Block]:
    for text in workload.texts:
        if text.text is not None:
            yield Text(f"{one_line(text.prompt)} … {one_line(text.text)}", "info", f"{text.name}.")
    yield from map(Text, original_lines(workload.texts))


def _measured_further(run: Material) -> Iterator[Section]:
    """Passes that only some runs have."""
    record = run.record
    if record.simulated:
        return
    workload, memory = record.workload, record.memory
    inference = None if isinstance(workload, TextGeneration) else workload
    if inference and inference.threads:
        blocks = (
            threads_curve("plot-threads", inference.threads),
            threads_table(inference.threads),
        )
        yield Section("threads", "Threads", blocks)
    if inference and inference.sustained:
        figure = sustained_curve("plot-sustained", inference.sustained)
        yield Section("sustained", "Sustained work", (Text(_kept(run)), figure))
    if memory and len(memory.points) >= _LEAST_POINTS:
        yield Section("memory", "Memory", (*_weights(run), memory_curve("plot-memory", memory)))


def _kept(run: Material) -> str:
    sustained = run.record.inference.sustained
    assert sustained  # noqa: S101 - for the type checker
    start, end = shown.number(sustained.start_per_s), shown.number(sustained.end_per_s)
    text = (
        f"{sustained.inferences:,} inferences back to back in {sustained.seconds:,.0f} s. "
        f"{shown.percent(sustained.retained_percent)} of the rate at the start was left at the end "
        f"({end} of {start} per second)."
    )
    for share, seconds in (
        (10, sustained.to_minus_10_percent_s),
        (25, sustained.to_minus_25_percent_s),
    ):
        if seconds is not None:
            text += f" It stayed {share} % below after {seconds:,.0f} s."
    if energy := sustained.energy:
        text += (
            f" An inference took an estimated {shown.number(energy.joules_per_inference)} J "
            f"of the battery, {shown.number(energy.watts)} W for the whole device."
        )
    return text


def _weights(run: Material) -> Iterator[Block]:
    memory = run.record.memory
    if memory and memory.weights:
        how = {"mapped": "are pages of the program's file", "loaded": "are copies",
               "both": "are partly pages of the program's file, partly copies"}  # fmt: skip
        held = shown.size(memory.program_resident_bytes)
        more = f" {held} of the file were resident." if memory.program_resident_bytes else ""
        yield Text(f"The weights {how[str(memory.weights)]}.{more}")


def _device(run: Material) -> Iterator[Block]:
    during = run.record.device.during
    figure: Figure | None = None
    if len(during) >= _LEAST_POINTS:
        figure = device_over_time("plot-device", during)
    if figure:
        yield figure
    yield from device_state(run.record)


def _options(run: Material) -> Iterator[Block]:
    yield from map(Text, run.no_plan)
    yield from options(run)
