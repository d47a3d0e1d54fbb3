"""The device's state over time, and what further passes measured: threads, rates, memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from etdeploy.bench.records.performance import DeviceSample, Memory, Sustained, ThreadsRecord
from etdeploy.core.layout import cut
from etdeploy.devices.base import DeviceState
from etdeploy.report.document import Figure
from etdeploy.report.formatting import time_unit
from etdeploy.report.plots import (
    Values,
    axis,
    escape,
    panel_domains,
    rounded,
    series_colour,
)

# A phone has dozens of sensors; those that rose most tell the story.
_MOST_SENSORS = 4
_LONGEST_NAME = 20
# In CSS pixels: margins of the whole, a plot with the room above it, that room.
_MARGIN_PX, _PANEL_PX, _GAP_PX = 100, 150, 34
_MB, _GB = 1e6, 1e9

_Line = tuple[str, list[float | None]]
_Panel = tuple[str, list[_Line]]


def plot_device(key: str, samples: Sequence[DeviceSample]) -> Figure | None:
    """Temperatures, frequencies, battery and free memory; None where nothing was reported."""
    panel_list = [panel for panel in _panels([s.state for s in samples]) if panel[1]]
    if not panel_list:
        return None
    seconds = rounded(sample.seconds for sample in samples)
    last = len(panel_list)
    height = _MARGIN_PX + _PANEL_PX * last
    traces: list[Values] = []
    for number, (title, lines) in enumerate(panel_list, 1):
        traces += [_trace(seconds, line, i, number, title) for i, line in enumerate(lines)]
    layout: Values = {
        "xaxis": axis("seconds since the first pass began", anchor=f"y{last}" if last > 1 else "y"),
        "shapes": _passes(samples),
        "margin": {"t": 44, "l": 64},
        "showlegend": True,
        "annotations": _pass_names(samples),
    }
    domains = panel_domains(last, _GAP_PX / (_PANEL_PX * last))
    for number, (panel, domain) in enumerate(zip(panel_list, domains, strict=True), 1):
        suffix = "" if number == 1 else str(number)
        layout[f"yaxis{suffix}"] = axis(panel[0], domain=domain, nticks=5)
        # Each panel has the names of its lines above it.
        layout[f"legend{suffix}"] = {
            "orientation": "h",
            "x": 0,
            "xanchor": "left",
            "y": domain[1],
            "yanchor": "bottom",
            "font": {"size": 11},
        }
    label = "State of the device during the run: " + ", ".join(title for title, _ in panel_list)
    caption = "Every second pass is shaded; its name stands at the bottom."
    return Figure(key, traces, layout, label, caption, height=height)


def _panels(states: Sequence[DeviceState]) -> list[_Panel]:
    return [
        ("°C", _temperatures(states)),
        ("MHz", _frequencies(states)),
        ("battery %", _changing(_single("battery", states, lambda s: s.battery_percent))),
        ("battery W", _single("battery", states, _watts)),
        ("free GB", _single("available memory", states, _free_gb)),
    ]


def _temperatures(states: Sequence[DeviceState]) -> list[_Line]:
    names = dict.fromkeys(name for state in states for name in state.temperatures_celsius)
    lines = [(name, [s.temperatures_celsius.get(name) for s in states]) for name in names]
    lines += _single("battery", states, lambda s: s.battery_celsius)
    return sorted(lines, key=_rise, reverse=True)[:_MOST_SENSORS]


def _rise(line: _Line) -> float:
    known = [value for value in line[1] if value is not None]
    return max(known) - min(known) if known else 0.0


def _frequencies(states: Sequence[DeviceState]) -> list[_Line]:
    """The current frequency of each cluster, known by its cores."""
    found: dict[str, list[float | None]] = {}
    for place, state in enumerate(states):
        for cluster in state.clusters:
            if cluster.current_khz is not None:
                line = found.setdefault(cores_text(cluster.cpus), [None] * len(states))
                line[place] = cluster.current_khz / 1000
    return list(found.items())


def cores_text(cpus: tuple[int, ...]) -> str:
    """The cores of a cluster in words."""
    if len(cpus) > 2 and cpus == tuple(range(cpus[0], cpus[-1] + 1)):
        return f"cores {cpus[0]}-{cpus[-1]}"
    return f"core{'s' if len(cpus) > 1 else ''} {', '.join(map(str, cpus))}"


def _watts(state: DeviceState) -> float | None:
    if state.battery_milliamps is None or state.battery_volts is None:
        return None
    return state.battery_milliamps * state.battery_volts / 1000


def _free_gb(state: DeviceState) -> float | None:
    free = state.available_memory_bytes
    return None if free is None else free / _GB


def _single(
    name: str, states: Sequence[DeviceState], value: Callable[[DeviceState], float | None]
) -> list[_Line]:
    values = [value(state) for state in states]
    return [(name, values)] if any(each is not None for each in values) else []


def _changing(lines: list[_Line]) -> list[_Line]:
    return [line for line in lines if _rise(line) > 0]


def _trace(
    seconds: Sequence[float | None], line: _Line, index: int, panel: int, unit: str
) -> Values:
    name, values = line
    return {
        "type": "scatter", "mode": "lines+markers", "x": seconds, "y": rounded(values),
        "yaxis": "y" if panel == 1 else f"y{panel}", "connectgaps": True,
        "name": escape(cut(name, _LONGEST_NAME)),
        "legend": "legend" if panel == 1 else f"legend{panel}",
        "line": {"color": series_colour(index), "width": 1.75}, "marker": {"size": 4},
        "hovertemplate": f"{escape(name)}: %{{y:.4g}} {unit.rpartition(' ')[2]} after %{{x:.1f}} s"
        "<extra></extra>",
    }  # fmt: skip


def _spans(samples: Sequence[DeviceSample]) -> list[tuple[str, float, float]]:
    """The passes with their first and last moment, in order."""
    spans: list[tuple[str, float, float]] = []
    for sample in samples:
        if spans and spans[-1][0] == sample.pass_name:
            spans[-1] = (sample.pass_name, spans[-1][1], sample.seconds)
        else:
            spans.append((sample.pass_name, sample.seconds, sample.seconds))
    return spans


def _passes(samples: Sequence[DeviceSample]) -> list[Values]:
    """Every second pass is shaded, up to where the next begins."""
    spans = _spans(samples)
    ends = [start for _, start, _ in spans[1:]] + [spans[-1][2] if spans else 0.0]
    return [
        {"type": "rect", "xref": "x", "yref": "paper", "x0": start, "x1": end, "y0": 0, "y1": 1,
         "fillcolor": "@sunken", "line": {"width": 0}, "layer": "below"}
        for i, ((_, start, _), end) in enumerate(zip(spans, ends, strict=True))
        if i % 2 == 0
    ]  # fmt: skip


def _pass_names(samples: Sequence[DeviceSample]) -> list[Values]:
    return [
        {"x": start, "y": 0, "xref": "x", "yref": "paper", "xanchor": "left", "yanchor": "bottom",
         "text": escape(name), "showarrow": False, "font": {"size": 11}}
        for name, start, _ in _spans(samples)
    ]  # fmt: skip


def plot_threads(key: str, sweep: Sequence[ThreadsRecord]) -> Figure:
    """Median latency by number of threads, with the median of each start."""
    unit = time_unit(min(each.latency_ms.median for each in sweep))
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


def plot_sustained(key: str, sustained: Sustained) -> Figure:
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


def plot_memory(key: str, memory: Memory) -> Figure:
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
    for i, (title, domain) in enumerate(zip(titles, panel_domains(len(titles)), strict=True), 1):
        layout[f"yaxis{'' if i == 1 else i}"] = axis(title, domain=domain)
    return layout


def _level(y: float, tone: str) -> Values:
    return {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": y, "y1": y,
            "line": {"color": tone, "width": 1, "dash": "dot"}}  # fmt: skip


def _level_words(y: float, text: str) -> Values:
    return {"xref": "paper", "x": 1, "y": y, "text": text, "showarrow": False, "xanchor": "right",
            "yanchor": "bottom", "font": {"size": 11}}  # fmt: skip
