"""Text in Markdown: whatever a name contains, it stays a name."""

from __future__ import annotations

import html
from collections.abc import Sequence

# What begins or ends something in Markdown, also inside an HTML element; `:` is part of an address.
_SPECIAL = "\\`*_[]|~@:$"
_ENTITIES = str.maketrans({character: f"&#{ord(character)};" for character in _SPECIAL})


def name(text: str) -> str:
    """A name from a recipe, a model or a device, as code.

    GitHub looks for mentions and links after it has resolved entities, but not in code.
    """
    return f"<code>{_plain(text)}</code>"


def prose(text: str) -> str:
    """A sentence of ours; it may quote names."""
    words = " ".join(text.split())
    marks = str.maketrans({c: f"&#{ord(c)};" for c in "\\`*_[]|~#$"})
    # A comment inside a word ends what would be a mention or an address.
    return (
        html.escape(words, quote=False)
        .translate(marks)
        .replace("@", "@<!-- -->")
        .replace("://", ":<!-- -->//")
    )


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = ()) -> str:
    """A table whose cells are Markdown already."""
    marks = ["---:" if column in right else "---" for column in columns]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (columns, marks, *rows))


def details(summary: str, content: str) -> str:
    """A part that is folded; GitHub needs the empty lines to read Markdown in it."""
    return f"<details>\n<summary>{prose(summary)}</summary>\n\n{content}\n\n</details>"


def _plain(text: str) -> str:
    words = " ".join(text.split()) or " "
    # html.escape first: its own entities have characters that would be replaced.
    pieces = [html.escape(c) if c in "<>&\"'" else c.translate(_ENTITIES) for c in words]
    return "".join(pieces).replace("www.", "www&#46;")
