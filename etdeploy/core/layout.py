"""Text for a given width: tables, and lines wrapped with a hanging indent."""

from __future__ import annotations

import itertools
import math
import os
import re
import textwrap
from collections.abc import Sequence

from etdeploy.core.errors import UsageError

# A last column narrower than this no longer reads as a column.
_LEAST_COLUMN = 16


def table(
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    right: Sequence[str] = (),
    width: int | None = None,
) -> str:
    """A plain text table.

    Args:
        columns: Their names.
        rows: Their cells; None is shown as a dash.
        right: The names of columns that are aligned to the right.
        width: The maximum line length. The last column is wrapped to it; if that leaves too
            little room, each row becomes a paragraph. None for lines of any length.
    """
    cells = [["-" if value is None else str(value) for value in row] for row in rows]
    widths = [max([len(name), *(len(row[i]) for row in cells)]) for i, name in enumerate(columns)]
    room = _room(widths, width)
    if room < min(widths[-1], _LEAST_COLUMN):
        return "\n".join(_paragraph(columns, row, width or room) for row in cells)
    widths[-1] = min(widths[-1], room)
    names = set(right)
    lines = [list(columns), ["-" * w for w in widths], *cells]
    return "\n".join(_line(line, widths, [name in names for name in columns]) for line in lines)


def fit(text: str, width: int | None) -> str:
    """Wraps long lines, indented to where their last column begins; words stay whole."""
    if width is None:
        return text
    return "\n".join(_fit(line, width) for line in text.split("\n"))


def cut(text: str, width: int) -> str:
    """The text, or its beginning and an ellipsis."""
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"


def _room(widths: Sequence[int], width: int | None) -> int:
    """The width that is left for the last column."""
    return widths[-1] if width is None else width - sum(w + 2 for w in widths[:-1])


def _line(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    parts = [
        v.rjust(w) if at_right else v.ljust(w)
        for v, w, at_right in zip(cells, widths, right, strict=True)
    ]
    before = "".join(part + "  " for part in parts[:-1])
    return _wrapped(before + parts[-1].rstrip(), len(before) + widths[-1], len(before)).rstrip()


def _paragraph(columns: Sequence[str], row: Sequence[str], width: int) -> str:
    """The row's name after its mark, if it has one; then a line for each other cell."""
    named = 1 if columns[0] else 2
    rest = [
        f"  {name}: {cell}"
        for name, cell in zip(columns[named:], row[named:], strict=True)
        if cell.strip("-")
    ]
    return "\n".join(_wrapped(line, width, 4) for line in (" ".join(row[:named]), *rest))


def _fit(line: str, width: int) -> str:
    if len(line) <= width:
        return line
    starts = [m.end() for m in re.finditer(r"\S {2,}(?=\S)", line) if m.end() <= width // 2 + 8]
    indent = len(line) - len(line.lstrip())
    return _wrapped(line, width, starts[-1] if starts else min(indent + 4, width // 2))


def _wrapped(line: str, width: int, indent: int) -> str:
    text = line.lstrip(" ")
    parts = textwrap.wrap(
        text, width, initial_indent=" " * (len(line) - len(text)), subsequent_indent=" " * indent,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
    return "\n".join(parts)


_BARS = "▁▂▃▄▅▆▇█"


def sparkline(
    values: Sequence[float], width: int, low: float | None = None, high: float | None = None
) -> str:
    """Bars of eighths, one for each value, or for the mean of several where there are more.

    Args:
        values: From left to right; a value that is not finite is a space.
        width: The most bars.
        low: What the lowest bar stands for; by default the smallest value that is drawn.
        high: What the highest bar stands for; by default the largest value that is drawn.
    """
    drawn = _means(values, width)
    finite = [value for value in drawn if math.isfinite(value)]
    if not finite:
        return " " * len(drawn)
    bottom = min(finite) if low is None else low
    top = max(finite) if high is None else high
    return "".join(_bar(value, bottom, top) for value in drawn)


def _means(values: Sequence[float], width: int) -> list[float]:
    """As many values as there is room for, each the mean of neighbours of about equal number."""
    bars = min(width, len(values))
    edges = [i * len(values) // bars for i in range(bars + 1)] if bars > 0 else [0]
    parts = (values[a:b] for a, b in itertools.pairwise(edges))
    return [math.fsum(part) / len(part) for part in parts]


def _bar(value: float, bottom: float, top: float) -> str:
    if not math.isfinite(value):
        return " "
    # Equal values are a line in the middle: they are neither low nor high.
    share = (value - bottom) / (top - bottom) if top > bottom else 0.5
    return _BARS[max(0, min(len(_BARS) - 1, int(share * len(_BARS))))]


_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.ASCII | re.IGNORECASE)
# Decimal and binary units of IEC 80000-13; also their first letters, as dd and du take them.
_UNITS = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgt", start=1):
    _UNITS |= {f"{_letter}b": 1000**_power, f"{_letter}ib": 1024**_power, _letter: 1000**_power}


def size_limit(variable: str, default_bytes: int) -> int | None:
    """The limit in bytes that an environment variable sets.

    Returns:
        None for no limit (`0` or `none`).
    """
    chosen = os.environ.get(variable, "").strip()
    if chosen.lower() == "none":
        return None
    return (parse_size(chosen, variable) if chosen else default_bytes) or None


def parse_size(text: str, variable: str | None = None) -> int:
    """The number of bytes in a size like `20 GB`, `512MiB`, `1.5g` or `1000`.

    Args:
        text: A number with or without a unit: B, kB, MB, GB, TB (powers of 1000, their first
            letter is enough), KiB, MiB, GiB, TiB (powers of 1024); upper or lower case.
        variable: The variable that it comes from, for the message.
    """
    match = _SIZE.fullmatch(text.strip())
    factor = _UNITS.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise UsageError(
            f"{text!r} is not a size",
            place=variable,
            remedy="Write a number with a unit, like 20 GB, 500 MB, 4 GiB, or a number of bytes.",
        )
    from decimal import Decimal  # which takes longer to load than the rest of this module

    return int(Decimal(match[1]) * factor)
