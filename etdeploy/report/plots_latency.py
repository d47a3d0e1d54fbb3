"""How long inferences took: all of them, and start by start."""

from __future__ import annotations

import math
from collections.abc import Sequence

from etdeploy.bench.records.performance import Latency, Start, samples_by_start
from etdeploy.bench.statistics import percentile
from etdeploy.bench.units import TimeUnit
from etdeploy.compare.model import Comparison, Verdict
from etdeploy.core.console import count
from etdeploy.core.layout import cut
from etdeploy.report.document import Figure
from etdeploy.report.formatting import INFERENCE, Sample, is_number, sample, time_unit
from etdeploy.report.plots import (
    Values,
    axis,
    count_above,
    escape,
    rounded,
    series_colour,
    thin_out,
    vertical_line,
    visible_range,
)
from etdeploy.report.report_data import ReportData

_LEAST_BINS, _MOST_BINS = 8, 60
_MOST_POINTS = 300
# How much of the room between two starts the samples of one take.
_WIDTH = 0.7


def plot_histogram(key: str, latency: Latency, of: Sample = INFERENCE) -> Figure:
    """A histogram of all samples, with the median and the 90th percentile."""
    unit = time_unit(latency.median)
    samples = [t * unit.per_ms for t in latency.samples if is_number(t)]
    window = visible_range(samples)
    edges, counts = histogram(samples, window[1] if window else None)
    width = edges[1] - edges[0]
    middles = [left + width / 2 for left in edges[:-1]]
    bars = {
        "type": "bar", "x": rounded(middles), "y": counts, "width": width,
        "marker": {"color": "@blue", "line": {"color": "@surface", "width": 1}},
        "hovertemplate": f"%{{x:.4g}} {unit.name}: %{{y}} {of.one}s<extra></extra>",
    }  # fmt: skip
    marks = [
        vertical_line(latency.median * unit.per_ms, "median", "@text", xanchor="right", xshift=-4),
        vertical_line(latency.p90 * unit.per_ms, "p90", "@muted", xanchor="left", xshift=4),
    ]
    layout = {
        "xaxis": axis(f"{of.time} ({unit.name})", window),
        "yaxis": axis(f"{of.one}s"),
        "margin": {"t": 28},
        "bargap": 0,
        "shapes": [line for line, _ in marks],
        "annotations": [words for _, words in marks],
    }
    label = f"Histogram of the {of.time} of {count(len(samples), of.one)}"
    return Figure(key, [bars], layout, label, _outliers(samples, window, unit, of), height=300)


def histogram(values: Sequence[float], end: float | None) -> tuple[list[float], list[int]]:
    """Edges of bins of one width, and how many values each has.

    The width is that of Freedman and Diaconis (1981), 2 IQR / n^(1/3), within bounds.
    """
    inside = [value for value in values if end is None or value <= end] or [0.0]
    low, high = min(inside), max(inside)
    if high <= low:
        margin = abs(low) * 0.01 or 0.5
        return [low - margin, low + margin], [len(inside)]
    spread = percentile(inside, 75) - percentile(inside, 25)
    bins_wanted = (high - low) / (2 * spread / len(inside) ** (1 / 3)) if spread > 0 else _MOST_BINS
    bins = min(_MOST_BINS, max(_LEAST_BINS, math.ceil(bins_wanted)))
    width = (high - low) / bins
    counts = [0] * bins
    for value in inside:
        counts[min(bins - 1, int((value - low) / width))] += 1
    return [low + i * width for i in range(bins + 1)], counts


def plot_starts(
    key: str, starts: Sequence[Start], latency: Latency, of: Sample = INFERENCE
) -> Figure:
    """The samples of each start in their order, and the start's median.

    So what changes within a start and what changes between starts stand side by side.
    """
    unit = time_unit(latency.median)
    by_start = [[t * unit.per_ms for t in each] for each in samples_by_start(starts, latency)]
    everything = [t for each in by_start for t in each]
    window = visible_range(everything)
    calm, disturbed = ("@blue", of.one), ("@orange", f"{of.one} of a disturbed start")
    groups = [
        _points(by_start, [not s.disturbances for s in starts], *calm, unit),
        _points(by_start, [bool(s.disturbances) for s in starts], *disturbed, unit),
    ]
    traces = [group for group in groups if group["x"]] + [_medians(starts, unit)]
    middle = latency.median * unit.per_ms
    layout = {
        "xaxis": axis("start" if len(starts) > 1 else f"{of.one}s of the only start, in order",
                      dtick=max(1, len(starts) // 20), range=[0.5, len(starts) + 0.5],
                      showgrid=False, zeroline=False, showticklabels=len(starts) > 1),
        "yaxis": axis(f"{of.time} ({unit.name})", window),
        "showlegend": True,
        "margin": {"t": 34},
        "shapes": [{"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": middle, "y1": middle,
                    "line": {"color": "@muted", "width": 1, "dash": "dot"}}],
    }  # fmt: skip
    label = f"The {of.time} of each {of.one} in {count(len(starts), 'start')}"
    return Figure(key, traces, layout, label, _outliers(everything, window, unit, of), height=340)


def _points(
    by_start: Sequence[Sequence[float]],
    is_shown: Sequence[bool],
    tone: str,
    name: str,
    unit: TimeUnit,
) -> Values:
    xs: list[float | None] = []
    ys: list[float | None] = []
    for number, (samples, shown) in enumerate(zip(by_start, is_shown, strict=True), 1):
        for place, value in thin_out(samples, _MOST_POINTS) if shown else ():
            xs.append(number - _WIDTH / 2 + _WIDTH * (place + 0.5) / len(samples))
            ys.append(value)
    return {
        "type": "scatter", "mode": "markers", "x": rounded(xs), "y": rounded(ys), "name": name,
        "marker": {"size": 4, "color": tone, "opacity": 0.55},
        "hovertemplate": f"%{{y:.4g}} {unit.name}<extra></extra>",
    }  # fmt: skip


def _medians(starts: Sequence[Start], unit: TimeUnit) -> Values:
    """A line for each start: one trace, broken between starts."""
    xs: list[float | None] = []
    ys: list[float | None] = []
    words: list[str] = []
    for number, start in enumerate(starts, 1):
        xs += [number - _WIDTH / 2, number + _WIDTH / 2, None]
        ys += [start.median_ms * unit.per_ms] * 2 + [None]
        why = "".join(f"<br>{escape(each.text)}" for each in start.disturbances)
        middle = f"{start.median_ms * unit.per_ms:.4g} {unit.name}"
        words += [f"start {number}: median {middle}{why}"] * 3
    return {
        "type": "scatter", "mode": "lines", "x": xs, "y": rounded(ys), "text": words,
        "name": "median of the start", "line": {"color": "@text", "width": 2.5},
        "hovertemplate": "%{text}<extra></extra>",
    }  # fmt: skip


def _outliers(
    samples: Sequence[float], window: tuple[float, float] | None, unit: TimeUnit, of: Sample
) -> str:
    if not window:
        return ""
    more = count_above(samples, window[1])
    verb = "lies" if more == 1 else "lie"
    return (
        f"{count(more, of.one)} {verb} above this range, the longest at "
        f"{max(samples):.4g} {unit.name}. Double-click to see all."
    )


# More curves over each other nobody tells apart; the plot by run has them all.
MOST_CURVES = 6
_MOST_RUN_POINTS = 200
_SPAN = 0.6
_LONGEST_NAME = 28
_TONES = {
    Verdict.FASTER: "@green",
    Verdict.SLOWER: "@red",
    Verdict.NO_DIFFERENCE: "@grey",
    Verdict.NOT_COMPARABLE: "@grey",
}


def plot_ratios(key: str, names: Sequence[str], comparisons: Sequence[Comparison]) -> Figure | None:
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
        words = (
            f"{escape(name)}: {ratio.median:.3f} ({low:.3f} to {high:.3f}), {comparison.verdict}"
        )
        traces.append(
            {
                "type": "scatter", "mode": "markers", "x": [round(ratio.median, 5)],
                "y": [escape(cut(name, _LONGEST_NAME))],
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


def plot_distributions(key: str, runs: Sequence[ReportData]) -> Figure:
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
                "type": "scatter", "mode": "lines", "name": escape(cut(run.name, _LONGEST_NAME)),
                "x": rounded([edges[0], *edges]), "y": rounded([0.0, *shares, 0.0]),
                "line": {"shape": "hv", "color": series_colour(i), "width": 2},
                "fill": "tozeroy", "opacity": 0.9,
                "hovertemplate": f"from %{{x:.4g}} {unit.name}: %{{y:.1f}} %<extra></extra>",
                "fillcolor": "rgba(128,140,160,0.12)",
            }
        )  # fmt: skip
    layout = {
        "xaxis": axis(f"{of.time} ({unit.name})", window),
        "yaxis": axis(f"% of the {of.one}s", rangemode="tozero"),
        "showlegend": True,
        "margin": {"t": 40},
    }
    more = count_above(everything, window[1]) if window else 0
    caption = f"{more} of all {of.one}s lie above this range." if more else ""
    return Figure(key, traces, layout, f"Distributions of the {of.time}", caption, height=320)


def plot_runs(key: str, runs: Sequence[ReportData]) -> Figure:
    """Samples of each run as points, the medians of its starts as lines."""
    unit, of = _unit(runs), _sample(runs)
    window = visible_range([t for run in runs for t in _samples(run, unit)])
    points: list[Values] = [_points_of_run(i, run, unit) for i, run in enumerate(runs)]
    layout = {
        "xaxis": {
            "tickvals": list(range(1, len(runs) + 1)),
            "ticktext": [escape(cut(run.name, _LONGEST_NAME)) for run in runs],
            "range": [0.5, len(runs) + 0.5], "showgrid": False, "zeroline": False,
        },
        "yaxis": axis(f"{of.time} ({unit.name})", window),
    }  # fmt: skip
    caption = "In the order of measuring. Each line is the median of a start."
    traces = [*points, _start_medians(runs, unit)]
    label = f"The {of.time} of each {of.one}, and the median of each start, by run"
    return Figure(key, traces, layout, label, caption, height=380)


def _points_of_run(index: int, run: ReportData, unit: TimeUnit) -> Values:
    samples = _samples(run, unit)
    picked = thin_out(samples, _MOST_RUN_POINTS)
    return {
        "type": "scatter", "mode": "markers",
        "x": rounded(index + 1 - _SPAN / 2 + _SPAN * (i + 0.5) / len(samples) for i, _ in picked),
        "y": rounded(value for _, value in picked),
        "marker": {"size": 4, "color": series_colour(index), "opacity": 0.45},
        "hovertemplate": f"%{{y:.4g}} {unit.name}<extra>{escape(run.name)}</extra>",
    }  # fmt: skip


def _start_medians(runs: Sequence[ReportData], unit: TimeUnit) -> Values:
    xs: list[float | None] = []
    ys: list[float | None] = []
    for place, run in enumerate(runs, 1):
        starts = run.record.workload.runs
        width = _SPAN / max(1, sum(start.samples for start in starts))
        left = place - _SPAN / 2
        for start in starts:
            xs += [left, left + width * start.samples, None]
            ys += [start.median_ms * unit.per_ms] * 2 + [None]
            left += width * start.samples
    return {
        "type": "scatter", "mode": "lines", "x": xs, "y": rounded(ys),
        "line": {"color": "@text", "width": 2},
        "hovertemplate": f"median of a start: %{{y:.4g}} {unit.name}<extra></extra>",
    }  # fmt: skip


def _unit(runs: Sequence[ReportData]) -> TimeUnit:
    """One for all runs, so that they can be compared."""
    return time_unit(max(run.record.workload.timed.median for run in runs))


def _sample(runs: Sequence[ReportData]) -> Sample:
    """What the times are of: the first run's, against which the others are compared."""
    return sample(runs[0].record.workload)


def _samples(run: ReportData, unit: TimeUnit) -> list[float]:
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
