"""What all plots share: text that stays text, axes, and samples that fit a page; trends."""

from __future__ import annotations

import html
import math
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from etdeploy.bench.statistics import percentile
from etdeploy.bench.units import unit_for
from etdeploy.history.series import NOISE, PERPLEXITY, base_metric, metric_title
from etdeploy.history.trend import Trend, TrendPoint
from etdeploy.report.document import Figure
from etdeploy.report.formatting import is_number, utc_text

Values = dict[str, Any]
# The theme's colours for things of a kind, in templates/report/page.css.
SERIES = ("@blue", "@orange", "@green", "@purple", "@sky", "@red", "@yellow", "@grey")
# More points than that in a plot nobody tells apart, and every one is bytes of the page.
_MOST_POINTS = 2000


def escape(text: str) -> str:
    """A name for a plot: plotly.js reads tags and entities, and the page reads a leading `@`."""
    return html.escape(text, quote=False).replace("@", "&#64;")


def series_colour(index: int) -> str:
    """The colour of the n-th thing of a kind."""
    return SERIES[index % len(SERIES)]


def axis(title: str, window: tuple[float, float] | None = None, **more: Any) -> Values:
    """An axis with a title; `window` limits what it shows at first."""
    limits = {"range": list(window)} if window else {}
    return {"title": {"text": title}, **limits, **more}


def rounded(values: Iterable[float | None], digits: int = 6) -> list[float | None]:
    """Six significant digits: more than a plot shows, and a third of the bytes."""
    return [
        float(f"{value:.{digits}g}") if value is not None and is_number(value) else None
        for value in values
    ]


def thin_out(values: Sequence[float], most: int = _MOST_POINTS) -> list[tuple[int, float]]:
    """At most so many values, evenly picked, each with its place."""
    step = max(1, math.ceil(len(values) / max(1, most)))
    return [(i, values[i]) for i in range(0, len(values), step)]


def visible_range(values: Sequence[float]) -> tuple[float, float] | None:
    """A range that shows the bulk of the times, where a few would squeeze all others together."""
    known = [value for value in values if is_number(value)]
    if not known:
        return None
    low, high, most = min(known), percentile(known, 99), max(known)
    room = high - low
    if most - low <= 3 * room or room <= 0:
        return None
    return low - 0.05 * room, high + 0.5 * room


def count_above(values: Sequence[float], end: float) -> int:
    """How many values lie above the end of a range."""
    return sum(value > end for value in values if is_number(value))


def panel_domains(count: int, gap: float = 0.09) -> list[list[float]]:
    """The domains of plots that stand above each other, the first at the top."""
    height = (1 - gap * (count - 1)) / count
    return [
        [round(1 - i * (height + gap) - height, 4), round(1 - i * (height + gap), 4)]
        for i in range(count)
    ]


def vertical_line(x: float, text: str, tone: str, **more: Any) -> tuple[Values, Values]:
    """A vertical line through the plot, and the words at its top."""
    line = {"type": "line", "xref": "x", "yref": "paper", "x0": x, "x1": x, "y0": 0, "y1": 1,
            "line": {"color": tone, "width": 1.5, "dash": "dot"}}  # fmt: skip
    words = {"x": x, "y": 1, "xref": "x", "yref": "paper", "yanchor": "bottom", "text": text,
             "showarrow": False, "font": {"size": 11, "color": tone}, **more}  # fmt: skip
    return line, words


_TICKS = 6
_BYTES_PER_MB = 1e6


def plot_trend(key: str, trend: Trend, marked: Collection[str] = ()) -> Figure:
    """The values of a metric run by run, the level between changes, and the changes.

    Runs stand beside each other at the same distance: those of one evening would be a single line
    on an axis of dates.

    Args:
        key: Of the figure.
        trend: What is shown.
        marked: Ids of runs that stand out, like those of the last night.
    """
    unit, factor = metric_unit(trend.metric, trend.median)
    numbered = list(enumerate(trend.points))
    used = [(i, p) for i, p in numbered if p.used]
    other = [(i, p) for i, p in numbered if not p.used and p.value is not None]
    traces = [_markers("runs", used, factor, unit, "@blue", "circle")]
    if other:
        traces.append(_markers("not used", other, factor, unit, "@grey", "x"))
    if ringed := [(i, p) for i, p in numbered if p.run_id in marked and p.value is not None]:
        traces.append(_rings(ringed, factor))
    traces.append(_levels(trend, factor))
    values = [p.value * factor for _, p in used if p.value is not None]
    window = visible_range(values)
    lines, texts = _change_marks(trend)
    layout = {
        "xaxis": axis("", **_ticks(trend), range=[-0.7, max(len(numbered) - 0.3, 1)]),
        "yaxis": axis(metric_title(trend.metric) + (f" ({unit})" if unit else ""), window),
        "shapes": lines,
        "annotations": texts,
        "showlegend": bool(other or ringed),
        "margin": {"t": 36},
    }  # fmt: skip
    more = count_above(values, window[1]) if window else 0
    caption = "In the order of time; the line is the median between two changes."
    caption += f" {more} values lie above this range." if more else ""
    where = f"{trend.series.recipe} on {trend.series.device.label}"
    label = f"{metric_title(trend.metric)} of {where}, by run"
    return Figure(key, traces, layout, label, caption, height=360)


def metric_unit(metric: str, median: float | None) -> tuple[str, float]:
    """The unit of the values, and by what they are multiplied."""
    if "bytes" in metric:
        return "MB", 1 / _BYTES_PER_MB
    if base_metric(metric) == PERPLEXITY:
        return "", 1.0
    if base_metric(metric) == NOISE:
        return "% of the signal", 100.0
    unit = unit_for(median or 0.0)
    return unit.name, unit.per_ms


def _markers(
    name: str,
    points: list[tuple[int, TrendPoint]],
    factor: float,
    unit: str,
    tone: str,
    symbol: str,
) -> Values:
    worse = ["@red" if point.judgement == "regressed" else tone for _, point in points]
    return {
        "type": "scatter", "mode": "markers", "name": name,
        "x": [i for i, _ in points],
        "y": rounded([(point.value or 0.0) * factor for _, point in points]),
        "text": [_hover(point) for _, point in points],
        "marker": {"size": 8, "color": worse, "symbol": symbol},
        "hovertemplate": f"%{{y:.4g}} {unit}<br>%{{text}}<extra></extra>",
    }  # fmt: skip


def _rings(points: list[tuple[int, TrendPoint]], factor: float) -> Values:
    return {
        "type": "scatter", "mode": "markers", "name": "this night",
        "x": [i for i, _ in points],
        "y": rounded([(point.value or 0.0) * factor for _, point in points]),
        "marker": {"size": 15, "color": "@orange", "symbol": "circle-open", "line": {"width": 2}},
        "hoverinfo": "skip",
    }  # fmt: skip


def _hover(point: TrendPoint) -> str:
    lines = [utc_text(point.started_at), point.run_id]
    if point.git_revision:
        lines.append(f"recipe {point.git_revision[:10]}")
    if point.spread_percent is not None:
        lines.append(f"{point.spread_percent:.1f} % between its starts")
    return "<br>".join(escape(line) for line in [*lines, *([point.remark] if point.remark else [])])


def _levels(trend: Trend, factor: float) -> Values:
    """A line for each level, with a gap at each change."""
    places = {point.run_id: i for i, point in enumerate(trend.points)}
    starts = [0, *(places[change.run_id] for change in trend.changes), len(trend.points)]
    medians = [change.before for change in trend.changes]
    medians += [trend.median] if trend.median is not None else []
    x: list[float | None] = []
    y: list[float | None] = []
    for i, median in enumerate(medians):
        x += [starts[i] - 0.4, starts[i + 1] - 0.6, None]
        y += [median * factor, median * factor, None]
    return {
        "type": "scatter", "mode": "lines", "x": x, "y": rounded(y), "name": "median",
        "line": {"color": "@orange", "width": 2}, "hoverinfo": "skip", "showlegend": False,
    }  # fmt: skip


def _change_marks(trend: Trend) -> tuple[list[Values], list[Values]]:
    places = {point.run_id: i for i, point in enumerate(trend.points)}
    lines, texts = [], []
    for change in trend.changes:
        tone = "@red" if change.ratio > 1 else "@green"
        text = f"{100 * (change.ratio - 1):+.1f} %"
        line, words = vertical_line(places[change.run_id] - 0.5, text, tone)
        lines.append(line)
        texts.append(words)
    return lines, texts


def _ticks(trend: Trend) -> Values:
    """A few dates, evenly picked."""
    count = len(trend.points)
    step = max(1, -(-count // _TICKS))
    places = list(range(0, count, step))
    times = [trend.points[i].started_at for i in places]
    # Dates, or of runs of one day their times.
    part = slice(11, 16) if len({time[:10] for time in times}) == 1 < count else slice(10)
    texts = [escape(time[part]) for time in times]
    return {"tickvals": places, "ticktext": texts, "showgrid": False, "zeroline": False}
