"""Blocks as text for a terminal."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Iterable, Iterator, Sequence

from etdeploy.core import layout
from etdeploy.report.document import NOTHING, Block, Cell, Facts, LargeTable, Table, Text

# Columns of a line at most; names and paths may be longer.
WIDTH = 100
_LABEL = 15
# Columns of a name in a table, and those that other cells take beside it.
_SHORTEST_NAME, _LONGEST_NAME, _OTHER_COLUMNS = 20, 64, 50


def render(blocks: Iterable[Block], width: int | None = None) -> str:
    """Return the texts, facts and tables among the blocks; what is folded or drawn is left out.

    Args:
        blocks: In their order.
        width: The terminal's; with None, only facts are wrapped.
    """
    drawn = [(block, text) for block in blocks if (text := _draw(block, width))]
    parts = [text for _, text in drawn[:1]]
    for (before, _), (block, text) in itertools.pairwise(drawn):
        parts.append("\n" if _is_labelled(before) and _is_labelled(block) else "\n\n")
        parts.append(text)
    return "".join(parts)


def _is_labelled(block: Block) -> bool:
    return isinstance(block, Text) and bool(block.title)


def _draw(block: Block, width: int | None) -> str:
    if isinstance(block, LargeTable):
        return _table(block.brief, width)
    if isinstance(block, Table):
        return _table(block, width)
    columns = min(width or WIDTH, WIDTH)
    if isinstance(block, Text) and not block.title:
        return block.text if width is None else _wrapped(block.text, width, "", "  ")
    if isinstance(block, Text):
        return _labelled(block.title.rstrip(".:").lower(), [block.text], columns)
    if isinstance(block, Facts):
        facts = block.facts
        return "\n".join(_labelled(f.label, _lines(f.value, f.lines), columns) for f in facts)
    return ""


def _lines(value: str, lines: Sequence[str]) -> Iterator[str]:
    first = ": ".join(filter(None, (value, *lines[:1])))
    return filter(None, (first, *lines[1:]))


def _labelled(label: str, lines: Iterable[str], columns: int) -> str:
    start = f"  {label:<{_LABEL}} "
    indent = " " * (_LABEL + 3)
    parts = []
    for line in lines:
        parts.append(_wrapped(line, columns, start, indent))
        start = indent
    return "\n".join(parts)


def _wrapped(text: str, columns: int, start: str, indent: str) -> str:
    wrapped = textwrap.wrap(
        text, columns, initial_indent=start, subsequent_indent=indent,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
    return "\n".join(wrapped)


def _table(block: Table, width: int | None) -> str:
    if not block.rows:
        return ""
    longest = _LONGEST_NAME
    if width is not None:
        longest = min(max(_SHORTEST_NAME, width - _OTHER_COLUMNS), _LONGEST_NAME)
    rows = [[_cell(cell, None if i else longest) for i, cell in enumerate(r)] for r in block.rows]
    text = layout.table(block.columns, rows, block.right, width and width - 2)
    lines = [*text.splitlines(), *([block.more] if block.more else [])]
    return "\n".join(f"  {line}".rstrip() for line in lines)


def _cell(cell: Cell, longest: int | None) -> str | None:
    if cell.text == NOTHING:
        return None
    text = cell.text.replace("\u00a0", " ")
    return layout.cut(text, longest) if cell.code and longest else text
