"""Lines behind labels, as every text of a run has them."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

WIDTH = 100
"""Columns of a line at most; only paths may be longer."""
LABEL = 12
"""Columns of a label."""


def wrapped(label: str, lines: Sequence[str], indent: str = "  ") -> str:
    """Lines behind a label, each wrapped to the width."""
    start = f"{indent}{label:<{LABEL}} " if indent else ""
    found = []
    for line in lines:
        found += textwrap.wrap(
            line, WIDTH, initial_indent=start, subsequent_indent=" " * len(start),
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip
        start = " " * len(start)
    return "\n".join(found)


def indented(text: str) -> str:
    """A text whose lines begin where labels do."""
    return "\n".join(f"  {line}".rstrip() for line in text.splitlines())
