"""How long inferences took: all of them, and start by start."""

from __future__ import annotations

import math
from collections.abc import Sequence

from etdeploy.bench.records.performance import Latency, Start, samples_by_start
from etdeploy.bench.statistics import percentile
from etdeploy.bench.units import TimeUnit
from etdeploy.core.console import count
from etdeploy.report.document import Figure
from etdeploy.report.figures.base import (
    Values,
    axis,
    beyond,
    plain,
    rounded,
    thinned,
    upright,
    visible_range,
)
from etdeploy.report.formatting import INFERENCE, Sample, is_number, unit_of

_LEAST_BINS, _MOST_BINS = 8, 60
_MOST_POINTS = 300
# How much of the room between two starts the samples of one take.
_WIDTH = 0.7


def distribution(key: str, latency: Latency, of: Sample = INFERENCE) -> Figure:
    """A histogram of all samples, with the median and the 90th percentile."""
    unit = unit_of(latency.median)
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
        upright(latency.median * unit.per_ms, "median", "@text", xanchor="right", xshift=-4),
        upright(latency.p90 * unit.per_ms, "p90", "@muted", xanchor="left", xshift=4),
    ]
    layout = {
        "xaxis": axis(f"{of.time} ({unit.name})", **({"range": list(window)} if window else {})),
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
    wanted = (high - low) / (2 * spread / len(inside) ** (1 / 3)) if spread > 0 else _MOST_BINS
    bins = min(_MOST_BINS, max(_LEAST_BINS, math.ceil(wanted)))
    width = (high - low) / bins
    counts = [0] * bins
    for value in inside:
        counts[min(bins - 1, int((value - low) / width))] += 1
    return [low + i * width for i in range(bins + 1)], counts


def run_to_run(
    key: str, starts: Sequence[Start], latency: Latency, of: Sample = INFERENCE
) -> Figure:
    """The samples of each start in their order, and the start's median.

    So what changes within a start and what changes between starts stand side by side.
    """
    unit = unit_of(latency.median)
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
        "yaxis": axis(f"{of.time} ({unit.name})", **({"range": list(window)} if window else {})),
        "showlegend": True,
        "margin": {"t": 34},
        "shapes": [{"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": middle, "y1": middle,
                    "line": {"color": "@muted", "width": 1, "dash": "dot"}}],
    }  # fmt: skip
    label = f"The {of.time} of each {of.one} in {count(len(starts), 'start')}"
    return Figure(key, traces, layout, label, _outliers(everything, window, unit, of), height=340)


def _points(
    by_start: Sequence[Sequence[float]],
    wanted: Sequence[bool],
    tone: str,
    name: str,
    unit: TimeUnit,
) -> Values:
    xs: list[float | None] = []
    ys: list[float | None] = []
    for number, (samples, is_wanted) in enumerate(zip(by_start, wanted, strict=True), 1):
        for place, value in thinned(samples, _MOST_POINTS) if is_wanted else ():
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
        why = "".join(f"<br>{plain(each.text)}" for each in start.disturbances)
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
    more = beyond(samples, window[1])
    verb = "lies" if more == 1 else "lie"
    return (
        f"{count(more, of.one)} {verb} above this range, the longest at "
        f"{max(samples):.4g} {unit.name}. Double-click to see all."
    )
