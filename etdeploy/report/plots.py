"""What all plots share: text that stays text, axes, and samples that fit a page."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from typing import Any

from etdeploy.bench.statistics import percentile
from etdeploy.report.formatting import is_number

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


def rounded(values: Iterable[float | None]) -> list[float | None]:
    """Six significant digits: more than a plot shows, and a third of the bytes."""
    return [
        float(f"{value:.6g}") if value is not None and is_number(value) else None
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
