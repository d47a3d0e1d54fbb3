"""A series of runs over time."""

from __future__ import annotations

from collections.abc import Collection

from etdeploy.bench.units import unit_for
from etdeploy.history.model import Trend, TrendPoint
from etdeploy.history.series import NOISE, PERPLEXITY, base_of, title
from etdeploy.report.document import Figure
from etdeploy.report.figures.base import (
    Values,
    axis,
    beyond,
    plain,
    rounded,
    upright,
    visible_range,
)
from etdeploy.report.formatting import moment

_TICKS = 6
_BYTES_PER_MB = 1e6


def over_time(key: str, trend: Trend, marked: Collection[str] = ()) -> Figure:
    """The values of a metric run by run, the level between changes, and the changes.

    Runs stand beside each other at the same distance: those of one evening would be a single line
    on an axis of dates.

    Args:
        key: Of the figure.
        trend: What is shown.
        marked: Ids of runs that stand out, like those of the last night.
    """
    unit, factor = _unit(trend)
    numbered = list(enumerate(trend.points))
    used = [(i, p) for i, p in numbered if p.used]
    other = [(i, p) for i, p in numbered if not p.used and p.value is not None]
    traces = [_points("runs", used, factor, unit, "@blue", "circle")]
    if other:
        traces.append(_points("not used", other, factor, unit, "@grey", "x"))
    if ringed := [(i, p) for i, p in numbered if p.run_id in marked and p.value is not None]:
        traces.append(_rings(ringed, factor))
    traces.append(_levels(trend, factor))
    values = [p.value * factor for _, p in used if p.value is not None]
    window = visible_range(values)
    lines, words = _changes(trend)
    layout = {
        "xaxis": axis("", **_ticks(trend), range=[-0.7, max(len(numbered) - 0.3, 1)]),
        "yaxis": axis(title(trend.metric) + (f" ({unit})" if unit else ""), **_range(window)),
        "shapes": lines,
        "annotations": words,
        "showlegend": bool(other or ringed),
        "margin": {"t": 36},
    }  # fmt: skip
    more = beyond(values, window[1]) if window else 0
    caption = "In the order of time; the line is the median between two changes."
    caption += f" {more} values lie above this range." if more else ""
    label = f"{title(trend.metric)} of {trend.series.recipe} on {trend.series.device.label}, by run"
    return Figure(key, traces, layout, label, caption, height=360)


def _range(window: tuple[float, float] | None) -> Values:
    return {"range": list(window)} if window else {}


def _unit(trend: Trend) -> tuple[str, float]:
    """The unit of the values, and by what they are multiplied."""
    if "bytes" in trend.metric:
        return "MB", 1 / _BYTES_PER_MB
    if base_of(trend.metric) == PERPLEXITY:
        return "", 1.0
    if base_of(trend.metric) == NOISE:
        return "% of the signal", 100.0
    unit = unit_for(trend.median or 0.0)
    return unit.name, unit.per_ms


def _points(
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
        "text": [_words(point) for _, point in points],
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


def _words(point: TrendPoint) -> str:
    lines = [moment(point.started_at), point.run_id]
    if point.git_revision:
        lines.append(f"recipe {point.git_revision[:10]}")
    if point.spread_percent is not None:
        lines.append(f"{point.spread_percent:.1f} % between its starts")
    return "<br>".join(plain(line) for line in [*lines, *([point.remark] if point.remark else [])])


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


def _changes(trend: Trend) -> tuple[list[Values], list[Values]]:
    places = {point.run_id: i for i, point in enumerate(trend.points)}
    lines, words = [], []
    for change in trend.changes:
        tone = "@red" if change.ratio > 1 else "@green"
        text = f"{100 * (change.ratio - 1):+.1f} %"
        line, told = upright(places[change.run_id] - 0.5, text, tone)
        lines.append(line)
        words.append(told)
    return lines, words


def _ticks(trend: Trend) -> Values:
    """A few dates, evenly picked."""
    count = len(trend.points)
    step = max(1, -(-count // _TICKS))
    places = list(range(0, count, step))
    times = [trend.points[i].started_at for i in places]
    # Dates, or of runs of one day their times.
    part = slice(11, 16) if len({time[:10] for time in times}) == 1 < count else slice(10)
    texts = [plain(time[part]) for time in times]
    return {"tickvals": places, "ticktext": texts, "showgrid": False, "zeroline": False}
