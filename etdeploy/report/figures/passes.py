"""What further passes measured: threads, sustained work, memory."""

from __future__ import annotations

from collections.abc import Sequence

from etdeploy.bench.records.performance import Memory, Sustained, ThreadsRecord
from etdeploy.report.document import Figure
from etdeploy.report.figures.base import Values, axis, panels, rounded
from etdeploy.report.formatting import unit_of

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
