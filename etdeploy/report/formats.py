"""A report in each of its formats."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from etdeploy.bench.records.generation import TextGeneration
from etdeploy.bench.records.performance import samples_by_start
from etdeploy.bench.records.record import RunRecord
from etdeploy.bench.units import TimeUnit
from etdeploy.compare.model import Comparison, Verdict
from etdeploy.core.console import count
from etdeploy.core.layout import cut
from etdeploy.core.values import Kind
from etdeploy.report import formatting, markdown, rows
from etdeploy.report.formatting import (
    NOTHING,
    Sample,
    finite,
    is_number,
    outputs,
    ratio_text,
    sample,
    unit_of,
)
from etdeploy.report.html import page
from etdeploy.report.html.blocks import (
    BAD,
    GOOD,
    QUIET,
    WARN,
    Block,
    Card,
    Cell,
    Figure,
    Page,
    PageSection,
    Record,
    Table,
    Text,
    code,
    table,
)
from etdeploy.report.html.figures.base import (
    Values,
    axis,
    beyond,
    colour,
    plain,
    rounded,
    thinned,
    visible_range,
)
from etdeploy.report.html.figures.latency import histogram
from etdeploy.report.html.single import single_page
from etdeploy.report.html.tables import compared_table
from etdeploy.report.report_data import Material, Report

BENCHMARK = "ExecuTorch"
# An object begins with it, and an array without a space in front.
BEGINNING = '[{"benchmark": {"name": "ExecuTorch", "mode": "inference",'
_GB = 10**9
# ExecuTorch's jobs divide KiB by 1024 and call that mb.
_MIB = 1024**2
# A name, values, and what they are of.
_Metric = tuple[str, list[float], dict[str, str]]


def pytorch_oss(runs: Sequence[Material]) -> str:
    """A JSON array with an object for each metric of each run.

    Metrics of several starts have a value for each. A simulated run has `load_status` alone: its
    times are no device's.
    """
    found = [each for run in runs for each in _of_run(run.record)]
    # A line for each metric: as an array it is one value, as text it can be read.
    lines = [json.dumps(each, ensure_ascii=False, allow_nan=False) for each in found]
    return "[" + ",\n".join(lines) + "]\n"


def _of_run(record: RunRecord) -> Iterator[dict[str, Any]]:
    common = _common(record)
    metrics: list[_Metric] = [(name, values, {}) for name, values in _metrics(record)]
    for name, values, point in [*metrics, *_text_metrics(record)]:
        known = [value for value in finite(values) if value is not None]
        if known:
            metric = {"name": name, "benchmark_values": known, "target_value": 0}
            extra = {"method": record.program.method, **point}
            yield {**common, "metric": {**metric, "extra_info": extra}}


def _metrics(record: RunRecord) -> Iterator[tuple[str, list[float]]]:
    # A record is written only by a run that loaded its program and ended well.
    yield "load_status", [0]
    if record.simulated:
        return
    starts = record.workload.runs
    yield "model_load_time(ms)", [start.load_ms for start in starts]
    if not isinstance(record.workload, TextGeneration):
        yield "avg_inference_latency(ms)", [start.mean_ms for start in starts]
        samples = samples_by_start(starts, record.workload.latency_ms)
        yield "trimmean_inference_latency(ms)", [_trimmed_mean(each) for each in samples if each]
        yield "first_inference_latency(ms)", [start.first_inference_ms for start in starts]
    if record.memory and record.memory.peak_pss_bytes is not None:
        yield "ram_pss_usage(mb)", [record.memory.peak_pss_bytes / _MIB]
    if record.peak_rss_bytes is not None:
        yield "peak_inference_mem_usage(mb)", [record.peak_rss_bytes / _MIB]


def _text_metrics(record: RunRecord) -> Iterator[_Metric]:
    """Rates and times of each point of generated text, the decode rate first."""
    workload = record.workload
    if record.simulated or not isinstance(workload, TextGeneration):
        return
    for point in workload.points:
        numbers = zip(("prompt_tokens", "new_tokens", "depth"), point.counted, strict=True)
        about = {name: str(number) for name, number in numbers}
        if point.decode_tokens_per_s is not None:
            yield "token_per_sec", [point.decode_tokens_per_s], about
        yield "prefill_token_per_sec", [point.prefill_tokens_per_s], about
        yield "time_to_first_token(ms)", list(point.first_token_ms.samples), about


def _trimmed_mean(samples: Sequence[float]) -> float:
    """The mean of the middle 80 %, cut as ExecuTorch's benchmark app does (ModelRunner.kt)."""
    ordered = sorted(each for each in samples if is_number(each))
    middle = ordered[len(ordered) // 10 : len(ordered) * 9 // 10] or ordered
    return sum(middle) / len(middle) if middle else float("nan")


def _common(record: RunRecord) -> dict[str, Any]:
    program = record.program
    quantization = "" if program.quantization in (None, "none") else f"_{program.quantization}"
    return {
        "benchmark": {
            "name": BENCHMARK,
            "mode": "inference",
            "dtype": program.quantization or "",
            "extra_info": _benchmark_info(record),
        },
        "model": {
            "name": record.recipe.name,
            "type": "OSS model",
            "backend": f"{program.backend or ' '.join(program.backends)}{quantization}",
            "extra_info": {"source": program.source, "sha256": program.sha256},
        },
        "runners": [_runner(record)],
        "dependencies": {
            "executorch": {"version": record.runner.executorch_version},
            "torch": {"version": record.versions.get("torch", "")},
        },
    }


def _benchmark_info(record: RunRecord) -> dict[str, str]:
    return {
        "app_type": "etdeploy",
        "etdeploy_version": record.versions.get("etdeploy", ""),
        "run_id": record.run_id,
        "started_at": record.started_at,
        "threads": str(record.runner.threads),
        "outputs": outputs(record),
        "disturbances": " ".join(str(each.kind) for each in record.disturbances),
        "simulated_by": record.simulated.by if record.simulated else "",
    }


def _runner(record: RunRecord) -> dict[str, Any]:
    facts, before = record.device.facts, record.device.before
    known = {
        "name": " ".join(part for part in (facts.manufacturer, facts.model) if part) or facts.name,
        "type": facts.os or facts.kind,
        "cpu_info": facts.abi or facts.target,
        "cpu_count": facts.cpu_count,
        "avail_mem_in_gb": _gigabytes(before.available_memory_bytes),
        "total_mem_in_gb": _gigabytes(facts.memory_bytes),
        "extra_info": {"soc": facts.soc or "", "etdeploy_device": facts.name},
    }
    return {key: value for key, value in known.items() if value is not None}


def _gigabytes(size_bytes: int | None) -> int | None:
    return None if size_bytes is None else round(size_bytes / _GB)


class Format(Kind):
    """What a report can be written as."""

    HTML = "html"
    MARKDOWN = "markdown"
    CSV = "csv"
    JSONL = "jsonl"
    PYTORCH_OSS = "pytorch-oss"

    @property
    def is_for_people(self) -> bool:
        """Whether it shows profiles and verdicts; the others have the records' figures."""
        return self in (Format.HTML, Format.MARKDOWN)


# By the end of a file's name.
SUFFIXES = {
    ".html": Format.HTML,
    ".htm": Format.HTML,
    ".md": Format.MARKDOWN,
    ".markdown": Format.MARKDOWN,
    ".csv": Format.CSV,
    ".jsonl": Format.JSONL,
}

# How each format's text begins, by which a later report knows the file as one of etdeploy's.
BEGINNINGS = {
    Format.HTML: page.MARK,
    Format.MARKDOWN: markdown.MARK,
    Format.CSV: ",".join(rows.CSV_COLUMNS),
    Format.JSONL: rows.JSONL_BEGINNING,
    Format.PYTORCH_OSS: BEGINNING,
}


def text_of(report: Report, form: Format) -> str:
    """The whole report as text that ends with a line break."""
    return _WRITERS[form](report)


def _html(report: Report) -> str:
    single = report.single
    return page.render(single_page(single) if single else several_page(report))


_WRITERS: dict[Format, Callable[[Report], str]] = {
    Format.HTML: _html,
    Format.MARKDOWN: markdown.markdown,
    Format.CSV: lambda report: rows.csv_text(report.runs),
    Format.JSONL: lambda report: rows.json_lines(report.runs),
    Format.PYTORCH_OSS: lambda report: pytorch_oss(report.runs),
}


# More cards than that are no summary; the table has every run.
_MOST_CARDS = 8
# Columns of a table that a person can still read.
_MOST_COLUMNS = 6
TONES = {
    Verdict.FASTER: GOOD,
    Verdict.SLOWER: BAD,
    Verdict.NO_DIFFERENCE: QUIET,
    Verdict.NOT_COMPARABLE: WARN,
}


def several_page(report: Report) -> Page:
    """Verdicts first, then what they rest on."""
    first, runs = report.runs[0], report.runs
    timed = [run for run in runs if not run.record.simulated]
    records = tuple(Record(i, run.name, f"{run.record.run_id}.json") for i, run in enumerate(runs))
    sections = [
        PageSection("verdicts", "Verdicts", tuple(_verdicts(report))),
        PageSection("latency", "Latency", tuple(_latency(timed))),
        PageSection("profile", "Where the time goes", tuple(_profile(runs))),
        PageSection("outputs", "Outputs", tuple(_outputs(report))),
        PageSection("differences", "What differs", tuple(_differences(runs))),
        PageSection("records", "Records", records),
    ]
    verdicts = dict.fromkeys(c.verdict for c in report.comparisons)
    return Page(
        title=f"{count(len(runs), 'run')} compared",
        subtitle=f"measured against {first.name}",
        badges=tuple(Cell(str(verdict), TONES[verdict]) for verdict in verdicts),
        cards=tuple(_cards(report)) if len(runs) <= _MOST_CARDS else (),
        notices=tuple(_notices(runs)),
        sections=tuple(section for section in sections if section.blocks),
        records=tuple(run.record.model_dump(mode="json") for run in runs),
    )


def _cards(report: Report) -> Iterator[Card]:
    for run, comparison in zip(report.runs, (None, *report.comparisons), strict=True):
        record = run.record
        lines = _compared(comparison)
        if record.simulated:
            yield Card(run.name, "simulated", "", tuple(lines), QUIET)
            continue
        number, _, unit = formatting.duration(record.workload.timed.median).partition(" ")
        between = record.workload.spread.between_percent
        spread = f"{formatting.percent(between)} between {len(record.workload.runs)} starts"
        lines += [spread if between is not None else "one start"]
        yield Card(run.name, number, unit, (*lines, f"outputs {formatting.outputs(record)}"))


def _compared(comparison: Comparison | None) -> list[str]:
    if comparison is None:
        return ["baseline"]
    if comparison.ratio is None:
        return [str(comparison.verdict)]
    return [f"{comparison.verdict}: x {ratio_text(comparison)}"]


def _notices(runs: Sequence[Material]) -> Iterator[Text]:
    marked = [
        f"{run.name} ({', '.join(dict.fromkeys(map(formatting.disturbance, run.disturbances)))})"
        for run in runs
        if run.disturbances
    ]
    if marked:
        yield Text(f"{'; '.join(marked)}.", WARN, "Disturbed.")


def _verdicts(report: Report) -> Iterator[Block]:
    names = [run.name for run in report.runs[1:]]
    if figure := ratios("plot-ratios", names, report.comparisons):
        yield figure
    yield _verdict_table(report)
    yield _other_figures(report.runs)
    about: dict[str, list[str]] = {}
    for name, comparison in zip(names, report.comparisons, strict=True):
        for remark in comparison.remarks:
            about.setdefault(remark, []).append(name)
    yield from (Text(f"{', '.join(found)}: {remark}") for remark, found in about.items())


def _verdict_table(report: Report) -> Table:
    rows = []
    for run, comparison in zip(report.runs, (None, *report.comparisons), strict=True):
        record, hidden = run.record, run.record.simulated is not None
        verdict = Cell("baseline", QUIET)
        if comparison:
            verdict = Cell(str(comparison.verdict), TONES[comparison.verdict])
        rows.append([
            code(run.name), code(record.device.facts.name),
            "simulated" if hidden else formatting.duration(record.workload.timed.median),
            formatting.NOTHING if hidden
            else formatting.percent(record.workload.spread.between_percent),
            ratio_text(comparison) if comparison else "1", verdict,
            comparison.reason if comparison else "",
        ])  # fmt: skip
    columns = ("run", "device", "median", "between starts", "ratio", "verdict", "why")
    return table("Runs and verdicts", columns, rows, right=columns[2:5])


def _other_figures(runs: Sequence[Material]) -> Table:
    rows = []
    for run in runs:
        record, hidden = run.record, run.record.simulated is not None
        figures = (
            formatting.duration(record.workload.timed.p90),
            formatting.duration(record.load_ms),
            formatting.duration(record.workload.first_ms),
            formatting.size(record.peak_rss_bytes),
        )
        cells = (formatting.NOTHING,) * len(figures) if hidden else figures
        program = formatting.size(record.program.size_bytes)
        rows.append([code(run.name), *cells, program, formatting.outputs(record)])
    columns = ("run", "p90", "load", "first inference", "peak memory", "program", "outputs")
    return table("Other figures of the runs", columns, rows, right=columns[1:6])


def _latency(timed: Sequence[Material]) -> Iterator[Block]:
    if not timed:
        yield Text("No run has times: all were simulated.")
        return
    if len(timed) <= MOST_CURVES:
        yield distributions("plot-distributions", timed)
    yield by_run("plot-runs", timed)


def _profile(runs: Sequence[Material]) -> Iterator[Block]:
    profiled = [run for run in runs if run.profile]
    for run in runs:
        if run.profile is None and profiled:
            yield from (Text(f"{run.name}: {text}") for text in run.no_profile)
    if len(profiled) < 2:
        yield Text("Operators are not compared: that needs the profiles of at least two runs.")
        return
    shown_runs = profiled[:_MOST_COLUMNS]
    if len(profiled) > len(shown_runs):
        yield Text(f"The operators of the first {len(shown_runs)} runs; name fewer to see others.")
    profiles = [run.profile for run in shown_runs if run.profile]
    yield compared_table("operators", [run.name for run in shown_runs], profiles)


def _outputs(report: Report) -> Iterator[Block]:
    rows = [
        [code(run.name), code(each.name), formatting.number(each.max_abs_error),
         formatting.number(each.cosine_similarity, 6), each.problem or ""]
        for run, comparison in zip(report.runs[1:], report.comparisons, strict=True)
        for each in comparison.outputs
    ]  # fmt: skip
    columns = ("run", "output", "largest difference", "cosine similarity", "problem")
    if rows:
        yield table("Outputs against the first run's", columns, rows, right=columns[2:4])


def _differences(runs: Sequence[Material]) -> Iterator[Block]:
    shown_runs = runs[:_MOST_COLUMNS]
    found = differences([run.record for run in shown_runs])
    if len(runs) > len(shown_runs):
        yield Text(f"Between the first {len(shown_runs)} runs; name fewer to see others.")
    if not found:
        yield Text("Nothing: recipe, program, runner, versions and device are the same.")
        return
    rows = [[code(key), *(code(value) for value in values)] for key, values in found.items()]
    names = tuple(run.name for run in shown_runs)
    yield table("What differs between the runs", ("what", *names), rows)


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
    wanted = {"sha256", "size_bytes", "method", "backend", "quantization", "source"}
    yield from _flat("program", program.model_dump(mode="json", include=wanted))
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


# More curves over each other nobody tells apart; the plot by run has them all.
MOST_CURVES = 6
_MOST_POINTS = 200
_WIDTH = 0.6
_LONGEST_NAME = 28
_TONES = {
    Verdict.FASTER: "@green",
    Verdict.SLOWER: "@red",
    Verdict.NO_DIFFERENCE: "@grey",
    Verdict.NOT_COMPARABLE: "@grey",
}


def ratios(key: str, names: Sequence[str], comparisons: Sequence[Comparison]) -> Figure | None:
    """The ratio of each run to the first with its interval; None where there is none to show."""
    known = [
        (name, c, c.ratio)
        for name, c in zip(names, comparisons, strict=True)
        if c.ratio and is_number(c.ratio.median)
    ]
    if not known:
        return None
    traces = []
    for name, comparison, ratio in known:
        low, high = ratio.low or ratio.median, ratio.high or ratio.median
        words = f"{plain(name)}: {ratio.median:.3f} ({low:.3f} to {high:.3f}), {comparison.verdict}"
        traces.append(
            {
                "type": "scatter", "mode": "markers", "x": [round(ratio.median, 5)],
                "y": [plain(cut(name, _LONGEST_NAME))],
                "marker": {"size": 11, "color": _TONES[comparison.verdict], "symbol": "diamond"},
                "error_x": {"type": "data", "symmetric": False, "thickness": 2.5, "width": 6,
                            "array": [round(max(0.0, high - ratio.median), 5)],
                            "arrayminus": [round(max(0.0, ratio.median - low), 5)],
                            "color": _TONES[comparison.verdict]},
                "hovertemplate": f"{words}<extra></extra>",
            }
        )  # fmt: skip
    layout = {
        "xaxis": axis("time by the first run's (below 1 is faster)", zeroline=False),
        "yaxis": {"autorange": "reversed", "automargin": True, "type": "category"},
        "shapes": [{"type": "line", "yref": "paper", "y0": 0, "y1": 1, "x0": 1, "x1": 1,
                    "line": {"color": "@muted", "width": 1.5, "dash": "dot"}}],
    }  # fmt: skip
    label = "Ratio of each run's time to the first run's, with its interval at 95 % confidence"
    return Figure(key, traces, layout, label, height=90 + 38 * len(known))


def distributions(key: str, runs: Sequence[Material]) -> Figure:
    """The distributions of the times over each other, as shares of each run's samples."""
    unit, of = _unit(runs), _sample(runs)
    samples = [_samples(run, unit) for run in runs]
    everything = [t for each in samples for t in each]
    window = visible_range(everything)
    edges, _ = histogram(everything, window[1] if window else None)
    traces = []
    for i, (run, times) in enumerate(zip(runs, samples, strict=True)):
        shares = _shares(times, edges)
        traces.append(
            {
                "type": "scatter", "mode": "lines", "name": plain(cut(run.name, _LONGEST_NAME)),
                "x": rounded([edges[0], *edges]), "y": rounded([0.0, *shares, 0.0]),
                "line": {"shape": "hv", "color": colour(i), "width": 2},
                "fill": "tozeroy", "opacity": 0.9,
                "hovertemplate": f"from %{{x:.4g}} {unit.name}: %{{y:.1f}} %<extra></extra>",
                "fillcolor": "rgba(128,140,160,0.12)",
            }
        )  # fmt: skip
    layout = {
        "xaxis": axis(f"{of.time} ({unit.name})", **({"range": list(window)} if window else {})),
        "yaxis": axis(f"% of the {of.one}s", rangemode="tozero"),
        "showlegend": True,
        "margin": {"t": 40},
    }
    more = beyond(everything, window[1]) if window else 0
    caption = f"{more} of all {of.one}s lie above this range." if more else ""
    return Figure(key, traces, layout, f"Distributions of the {of.time}", caption, height=320)


def by_run(key: str, runs: Sequence[Material]) -> Figure:
    """Samples of each run as points, the medians of its starts as lines."""
    unit, of = _unit(runs), _sample(runs)
    window = visible_range([t for run in runs for t in _samples(run, unit)])
    points: list[Values] = [_points(i, run, unit) for i, run in enumerate(runs)]
    layout = {
        "xaxis": {
            "tickvals": list(range(1, len(runs) + 1)),
            "ticktext": [plain(cut(run.name, _LONGEST_NAME)) for run in runs],
            "range": [0.5, len(runs) + 0.5], "showgrid": False, "zeroline": False,
        },
        "yaxis": axis(f"{of.time} ({unit.name})", **({"range": list(window)} if window else {})),
    }  # fmt: skip
    caption = "In the order of measuring. Each line is the median of a start."
    traces = [*points, _start_medians(runs, unit)]
    label = f"The {of.time} of each {of.one}, and the median of each start, by run"
    return Figure(key, traces, layout, label, caption, height=380)


def _points(index: int, run: Material, unit: TimeUnit) -> Values:
    samples = _samples(run, unit)
    picked = thinned(samples, _MOST_POINTS)
    return {
        "type": "scatter", "mode": "markers",
        "x": rounded(index + 1 - _WIDTH / 2 + _WIDTH * (i + 0.5) / len(samples) for i, _ in picked),
        "y": rounded(value for _, value in picked),
        "marker": {"size": 4, "color": colour(index), "opacity": 0.45},
        "hovertemplate": f"%{{y:.4g}} {unit.name}<extra>{plain(run.name)}</extra>",
    }  # fmt: skip


def _start_medians(runs: Sequence[Material], unit: TimeUnit) -> Values:
    xs: list[float | None] = []
    ys: list[float | None] = []
    for place, run in enumerate(runs, 1):
        starts = run.record.workload.runs
        width = _WIDTH / max(1, sum(start.samples for start in starts))
        left = place - _WIDTH / 2
        for start in starts:
            xs += [left, left + width * start.samples, None]
            ys += [start.median_ms * unit.per_ms] * 2 + [None]
            left += width * start.samples
    return {
        "type": "scatter", "mode": "lines", "x": xs, "y": rounded(ys),
        "line": {"color": "@text", "width": 2},
        "hovertemplate": f"median of a start: %{{y:.4g}} {unit.name}<extra></extra>",
    }  # fmt: skip


def _unit(runs: Sequence[Material]) -> TimeUnit:
    """One for all runs, so that they can be compared."""
    return unit_of(max(run.record.workload.timed.median for run in runs))


def _sample(runs: Sequence[Material]) -> Sample:
    """What the times are of: the first run's, against which the others are compared."""
    return sample(runs[0].record.workload)


def _samples(run: Material, unit: TimeUnit) -> list[float]:
    samples = run.record.workload.timed.samples
    return [t * unit.per_ms for t in samples if is_number(t)] or [0.0]


def _shares(values: Sequence[float], edges: Sequence[float]) -> list[float]:
    """What percentage of the values is in each bin."""
    width = edges[1] - edges[0]
    counts = [0] * (len(edges) - 1)
    for value in values:
        if edges[0] <= value <= edges[-1]:
            counts[min(len(counts) - 1, int((value - edges[0]) / width))] += 1
    return [100 * each / len(values) for each in counts]
