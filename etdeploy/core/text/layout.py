"""Text for a given width: tables, and lines wrapped with a hanging indent."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

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
