"""A page as Markdown, fit for a comment in a pull request."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from etdeploy.core.console import count
from etdeploy.report.document import (
    BAD,
    GOOD,
    WARN,
    Block,
    Card,
    Cell,
    Fact,
    Facts,
    Folded,
    LargeTable,
    Page,
    Table,
    Text,
)

# Tells a later report of the same file from somebody's notes.
MARK = "<!-- etdeploy report -->"
# GitHub refuses a comment of 65,536 characters; a bot adds a line or two of its own.
_MOST_CHARACTERS = 60_000
_MOST_ROWS = 60
_SIGNS = {GOOD: "🟢 ", BAD: "🔴 ", WARN: "⚠️ "}


def render(page: Page) -> str:
    """Return the page in fewer than 65,536 characters: what is folded is left out first."""
    parts = [MARK, f"### {name(page.title)}", prose(page.subtitle), _cards(page.cards)]
    parts += [_draw(section.blocks) for section in page.sections if section.is_open]
    parts.append("\n".join(f"> {line}<br>" for line in _notices(page.notices)))
    left_out = 0
    for section in page.sections:
        content = "" if section.is_open else _draw(section.blocks)
        if content and sum(map(len, parts)) + len(content) < _MOST_CHARACTERS:
            parts.append(details(section.title, content))
        else:
            left_out += bool(content)
    if left_out:
        parts.append(f"_{count(left_out, 'section')} left out, since a comment has a limit._")
    return "\n\n".join(part for part in parts if part) + "\n"


def _cards(cards: Sequence[Card]) -> str:
    rows = []
    for card in cards:
        value = f"{_SIGNS.get(card.tone, '')}**{prose(card.value)}** {card.unit}".strip()
        rows.append((prose(card.label), value, prose("; ".join(card.lines))))
    return table(("", "", ""), rows) if rows else ""


def _notices(notices: Iterable[Block]) -> list[str]:
    lines = []
    for notice in notices:
        if isinstance(notice, Folded):
            lines += _notices(notice.blocks)
        elif isinstance(notice, Text):
            lines.append(_text(notice))
    return lines


def _text(block: Text) -> str:
    title = f"**{prose(block.title)}** " if block.title else ""
    return f"{title}{prose(block.text)}"


def _draw(blocks: Iterable[Block]) -> str:
    parts = []
    for block in blocks:
        if isinstance(block, LargeTable):
            parts.append(_table(block.brief))
        elif isinstance(block, Table):
            parts.append(_table(block))
        elif isinstance(block, Facts):
            parts.append(table(("", ""), [_fact(fact) for fact in block.facts]))
        elif isinstance(block, Text):
            parts.append(_text(block))
        elif isinstance(block, Folded) and (content := _draw(block.blocks)):
            parts.append(f"{prose(block.title)}\n\n{content}")
    return "\n\n".join(part for part in parts if part)


def _fact(fact: Fact) -> tuple[str, str]:
    lines = "; ".join(map(name if fact.code else prose, fact.lines))
    return prose(fact.label), ": ".join(filter(None, (prose(fact.value), lines)))


def _table(block: Table) -> str:
    if not block.rows:
        return ""
    rows = [[_cell(cell) for cell in row] for row in block.rows[:_MOST_ROWS]]
    more = len(block.rows) - len(rows)
    below = f"{count(more, 'more row')} left out" if more else block.more
    text = table([prose(column) for column in block.columns], rows, block.right)
    return f"{text}\n\n{prose(below)}" if below else text


def _cell(cell: Cell) -> str:
    content = cell.text.lstrip("\u00a0")
    indent = "&nbsp;" * (len(cell.text) - len(content))
    text = name(content) if cell.code and content else prose(content)
    return f"{_SIGNS.get(cell.tone, '')}{indent}{text}"


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
