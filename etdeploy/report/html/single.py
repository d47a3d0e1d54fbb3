"""The page about one run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from etdeploy.bench.records.generation import TextGeneration
from etdeploy.bench.records.performance import Memory, Sustained, ThreadsRecord
from etdeploy.profile.model import Profile
from etdeploy.report import formatting
from etdeploy.report.formatting import one_line, original_lines, quality_of, unit_of
from etdeploy.report.html.blocks import Block, Figure, Page, PageSection, Record, Text
from etdeploy.report.html.cards import badges, cards, notices
from etdeploy.report.html.figures.base import Values, axis, panels, rounded
from etdeploy.report.html.figures.device import device_over_time
from etdeploy.report.html.figures.latency import distribution, run_to_run
from etdeploy.report.html.figures.modules import icicle, shares_bar
from etdeploy.report.html.tables import (
    device_state,
    latencies,
    methods_table,
    modules_table,
    operators_table,
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
from etdeploy.report.report_data import Material

# A device that reports its state once gives no line.
_LEAST_POINTS = 2


def single_page(run: Material) -> Page:
    """Everything that is known of a run, the most important first."""
    record = run.record
    sections = [
        *([] if record.simulated else _latency(run)),
        PageSection("profile", "Where the time goes", tuple(_profile(run))),
        PageSection("outputs", "Outputs", tuple(_outputs(run))),
        *_measured_further(run),
        PageSection("device", "Device", tuple(_device(run))),
        PageSection("options", "How the runner was built", tuple(_options(run))),
        PageSection("provenance", "Provenance", (provenance(run), recipe_source(record))),
        PageSection(
            "record", "Record", (Record(0, "All figures as JSON", f"{record.run_id}.json"),)
        ),
    ]
    where = f"{formatting.device(record)} ({record.device.facts.name})"
    return Page(
        title=f"{record.recipe.name} on {record.device.facts.name}",
        subtitle=f"{record.program.source}, {where}, {formatting.moment(record.started_at)}",
        badges=badges(run),
        cards=cards(run),
        notices=notices(run),
        sections=tuple(section for section in sections if section.blocks),
        records=(record.model_dump(mode="json"),),
    )


def _latency(run: Material) -> Iterator[PageSection]:
    record = run.record
    workload, starts, of = record.workload, record.workload.runs, formatting.sample(record.workload)
    if isinstance(workload, TextGeneration):
        yield PageSection("tokens", "Tokens", tuple(_tokens(workload)))
    histogram = distribution("plot-latency", workload.timed, of)
    heading = of.time[0].upper() + of.time[1:]
    yield PageSection("latency", heading, (histogram, latencies(record)))
    blocks: list[Block] = [run_to_run("plot-starts", starts, workload.timed, of)]
    if len(starts) > 1:
        blocks.append(starts_table(record))
    yield PageSection("starts", "From start to start", tuple(blocks))


def _tokens(workload: TextGeneration) -> Iterator[Block]:
    """The grid with what its numbers mean, and the text."""
    yield points_table(workload)
    yield from (Text(f"{term}: {text}.") for term, text in formatting.DEFINITIONS.items())
    if text := formatting.told_text(workload):
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
        f"Mean of {what}, {formatting.duration(profile.inference_ms)} each, "
        f"{formatting.percent(100 * profile.outside_delegates)} of it outside of delegates."
    )
    if profile.untraced_ms is None:
        return text
    return f"{text} Without the tracer, the median is {formatting.duration(profile.untraced_ms)}."


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


def _measured_further(run: Material) -> Iterator[PageSection]:
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
        yield PageSection("threads", "Threads", blocks)
    if inference and inference.sustained:
        figure = sustained_curve("plot-sustained", inference.sustained)
        yield PageSection("sustained", "Sustained work", (Text(_kept(run)), figure))
    if memory and len(memory.points) >= _LEAST_POINTS:
        yield PageSection("memory", "Memory", (*_weights(run), memory_curve("plot-memory", memory)))


def _kept(run: Material) -> str:
    sustained = run.record.inference.sustained
    assert sustained  # noqa: S101 - for the type checker
    start, end = formatting.number(sustained.start_per_s), formatting.number(sustained.end_per_s)
    text = (
        f"{sustained.inferences:,} inferences back to back in {sustained.seconds:,.0f} s. "
        f"{formatting.percent(sustained.retained_percent)} of the rate at the start was left at "
        f"the end ({end} of {start} per second)."
    )
    for share, seconds in (
        (10, sustained.to_minus_10_percent_s),
        (25, sustained.to_minus_25_percent_s),
    ):
        if seconds is not None:
            text += f" It stayed {share} % below after {seconds:,.0f} s."
    if energy := sustained.energy:
        text += (
            f" An inference took an estimated {formatting.number(energy.joules_per_inference)} J "
            f"of the battery, {formatting.number(energy.watts)} W for the whole device."
        )
    return text


def _weights(run: Material) -> Iterator[Block]:
    memory = run.record.memory
    if memory and memory.weights:
        how = {"mapped": "are pages of the program's file", "loaded": "are copies",
               "both": "are partly pages of the program's file, partly copies"}  # fmt: skip
        held = formatting.size(memory.program_resident_bytes)
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


_MB = 1e6


def threads_curve(key: str, sweep: Sequence[ThreadsRecord]) -> Figure:
    """Median latency by number of threads, with the median of each start."""
    unit = unit_of(min(each.latency_ms.median for each in sweep))
    starts = [(each.threads, start.median_ms) for each in sweep for start in each.runs]
    points = {
        "type": "scatter", "mode": "markers", "name": "median of a start",
        "x": [threads for threads, _ in starts],
        "y": rounded(ms * unit.per_ms for _, ms in starts),
        "marker": {"size": 6, "color": "@sky", "opacity": 0.7},
        "hovertemplate": f"%{{x}} threads: %{{y:.4g}} {unit.name}<extra></extra>",
    }  # fmt: skip
    line = {
        "type": "scatter", "mode": "lines+markers", "name": "median",
        "x": [each.threads for each in sweep],
        "y": rounded(each.latency_ms.median * unit.per_ms for each in sweep),
        "line": {"color": "@blue", "width": 2.5}, "marker": {"size": 8},
        "hovertemplate": f"%{{x}} threads: %{{y:.4g}} {unit.name}<extra></extra>",
    }  # fmt: skip
    layout = {
        "xaxis": axis("threads", tickvals=[each.threads for each in sweep]),
        "yaxis": axis(f"latency ({unit.name})", rangemode="tozero"),
        "showlegend": bool(starts),
        "margin": {"t": 34},
    }
    label = "Median latency by number of threads"
    return Figure(key, [points, line] if starts else [line], layout, label)


def sustained_curve(key: str, sustained: Sustained) -> Figure:
    """The rate over time; temperature and frequency beside it, where they were read."""
    points = sustained.points
    seconds = rounded(point.seconds for point in points)
    rows: list[tuple[str, list[float | None], str]] = [
        ("inferences per s", rounded(point.inferences_per_s for point in points), "@blue")
    ]
    if any(point.celsius is not None for point in points):
        rows.append(("°C", rounded(point.celsius for point in points), "@red"))
    if any(point.khz is not None for point in points):
        mhz = [None if point.khz is None else point.khz / 1000 for point in points]
        rows.append(("MHz", rounded(mhz), "@green"))
    traces = [
        _line(seconds, values, title, tone, i) for i, (title, values, tone) in enumerate(rows, 1)
    ]
    layout = _stacked([title for title, _, _ in rows])
    layout["yaxis"]["rangemode"] = "tozero"
    layout["shapes"] = [
        _level(sustained.start_per_s * share, tone)
        for share, tone in ((0.9, "@yellow"), (0.75, "@red"))
    ]
    layout["annotations"] = [
        _level_words(sustained.start_per_s * share, words)
        for share, words in ((0.9, "−10 %"), (0.75, "−25 %"))
    ]
    label = "Rate of back-to-back inferences over time"
    return Figure(key, traces, layout, label, height=240 + 130 * (len(rows) - 1))


def memory_curve(key: str, memory: Memory) -> Figure:
    """Resident memory by the second, and what the program plans."""
    seconds = rounded(point.seconds for point in memory.points)
    rss = rounded(point.rss_bytes / _MB for point in memory.points)
    traces = [{**_line(seconds, rss, "MB", "@blue", 1), "name": "RSS", "fill": "tozeroy",
               "fillcolor": "@faint"}]  # fmt: skip
    if any(point.pss_bytes is not None for point in memory.points):
        pss = [None if p.pss_bytes is None else p.pss_bytes / _MB for p in memory.points]
        traces.append({**_line(seconds, rounded(pss), "MB", "@purple", 1), "name": "PSS"})
    layout = {
        "xaxis": axis("seconds since the runner started"),
        "yaxis": axis("memory (MB)", rangemode="tozero"),
        "showlegend": True,
        "margin": {"t": 34},
    }
    return Figure(key, traces, layout, "Memory of the runner over time")


def _line(
    x: Sequence[float | None], y: Sequence[float | None], unit: str, tone: str, panel: int
) -> Values:
    suffix = "" if panel == 1 else str(panel)
    return {
        "type": "scatter", "mode": "lines" if len(x) > 1 else "markers", "x": x, "y": y,
        "xaxis": "x", "yaxis": f"y{suffix}", "line": {"color": tone, "width": 2},
        "hovertemplate": f"%{{x:.4g}} s: %{{y:.4g}} {unit}<extra></extra>",
    }  # fmt: skip


def _stacked(titles: Sequence[str]) -> Values:
    """Plots above each other with one time axis."""
    layout: Values = {"xaxis": axis("seconds", anchor=f"y{len(titles)}" if titles[1:] else "y")}
    for i, (title, domain) in enumerate(zip(titles, panels(len(titles)), strict=True), 1):
        layout[f"yaxis{'' if i == 1 else i}"] = axis(title, domain=domain)
    return layout


def _level(y: float, tone: str) -> Values:
    return {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": y, "y1": y,
            "line": {"color": tone, "width": 1, "dash": "dot"}}  # fmt: skip


def _level_words(y: float, text: str) -> Values:
    return {"xref": "paper", "x": 1, "y": y, "text": text, "showarrow": False, "xanchor": "right",
            "yanchor": "bottom", "font": {"size": 11}}  # fmt: skip
