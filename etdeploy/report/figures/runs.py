"""The times of several runs: their ratios, and their distributions."""

from __future__ import annotations

from collections.abc import Sequence

from etdeploy.bench.units import TimeUnit
from etdeploy.compare.model import Comparison, Verdict
from etdeploy.core.layout import cut
from etdeploy.report.document import Figure
from etdeploy.report.figures.base import (
    Values,
    axis,
    beyond,
    colour,
    plain,
    rounded,
    thinned,
    visible_range,
)
from etdeploy.report.figures.latency import histogram
from etdeploy.report.formatting import Sample, is_number, sample, unit_of
from etdeploy.report.report_data import ReportData

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


def distributions(key: str, runs: Sequence[ReportData]) -> Figure:
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


def by_run(key: str, runs: Sequence[ReportData]) -> Figure:
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


def _points(index: int, run: ReportData, unit: TimeUnit) -> Values:
    samples = _samples(run, unit)
    picked = thinned(samples, _MOST_POINTS)
    return {
        "type": "scatter", "mode": "markers",
        "x": rounded(index + 1 - _WIDTH / 2 + _WIDTH * (i + 0.5) / len(samples) for i, _ in picked),
        "y": rounded(value for _, value in picked),
        "marker": {"size": 4, "color": colour(index), "opacity": 0.45},
        "hovertemplate": f"%{{y:.4g}} {unit.name}<extra>{plain(run.name)}</extra>",
    }  # fmt: skip


def _start_medians(runs: Sequence[ReportData], unit: TimeUnit) -> Values:
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


def _unit(runs: Sequence[ReportData]) -> TimeUnit:
    """One for all runs, so that they can be compared."""
    return unit_of(max(run.record.workload.timed.median for run in runs))


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
