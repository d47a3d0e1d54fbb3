"""What a page consists of; templates/report draws each kind of block."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

# What a thing is, for its colour: a bad one is also said in words.
GOOD, WARN, BAD, QUIET = "good", "warn", "bad", "quiet"


@dataclass(frozen=True)
class Cell:
    """A cell of a table: its text, what it is, and whether it is code."""

    text: str
    tone: str = ""
    code: bool = False


def code(text: str, tone: str = "") -> Cell:
    """A name, a digest, an option: shown as it is written."""
    return Cell(text, tone, code=True)


@dataclass(frozen=True)
class Card:
    """One figure of the summary.

    Attributes:
        label: What it is.
        value: The number or word, without a unit.
        unit: Of the number.
        lines: What a reader needs to weigh it.
        tone: Colours the value.
        lead: Whether it is the figure that the report is about.
    """

    label: str
    value: str
    unit: str = ""
    lines: tuple[str, ...] = ()
    tone: str = ""
    lead: bool = False


@dataclass(frozen=True)
class Figure:
    """A plot.

    Attributes:
        key: Its element's id, and its place in the page's data.
        data: Traces of plotly.js. A colour that begins with `@` is one of the theme's.
        layout: Of plotly.js, over the page's own.
        label: What the plot shows, for who does not see it.
        caption: What to know when reading it.
        height: In CSS pixels.
        legend: Colours and what they stand for, where plotly.js draws no legend.
    """

    kind: ClassVar[str] = "figure"
    key: str
    data: Sequence[Mapping[str, Any]]
    layout: Mapping[str, Any]
    label: str
    caption: str = ""
    height: int = 320
    legend: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Table:
    """A small table; `right` are the columns with numbers, `label` says what it is."""

    kind: ClassVar[str] = "table"
    label: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    right: tuple[str, ...] = ()


def table(
    label: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    right: Sequence[str] = (),
) -> Table:
    """A table from texts and cells; rows of both have no common type."""
    cells = tuple(tuple(c if isinstance(c, Cell) else Cell(str(c)) for c in row) for row in rows)
    return Table(label, tuple(columns), cells, tuple(right))


@dataclass(frozen=True)
class Facts:
    """Names with values."""

    kind: ClassVar[str] = "facts"
    pairs: tuple[tuple[str, Cell], ...]


@dataclass(frozen=True)
class Text:
    """A paragraph; one with a tone stands out."""

    kind: ClassVar[str] = "text"
    text: str
    tone: str = ""
    title: str = ""


@dataclass(frozen=True)
class Operators:
    """The table of operators, which the page sorts and searches.

    Attributes:
        key: Its place in the page's data.
        payload: Columns and rows; strings that repeat are given once.
        label: What it is.
    """

    kind: ClassVar[str] = "operators"
    key: str
    payload: Mapping[str, Any]
    label: str


@dataclass(frozen=True)
class Source:
    """Text that is shown as it is."""

    kind: ClassVar[str] = "source"
    text: str


@dataclass(frozen=True)
class Record:
    """The place of a run record that is inside the page, to be read and saved."""

    kind: ClassVar[str] = "record"
    index: int
    name: str
    file: str


@dataclass(frozen=True)
class Folded:
    """Blocks that are shown on request."""

    kind: ClassVar[str] = "folded"
    title: str
    blocks: tuple[Block, ...]


Block = Figure | Table | Facts | Text | Operators | Source | Record | Folded


@dataclass(frozen=True)
class PageSection:
    """A part of the page with a heading and a link to it."""

    key: str
    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Page:
    """A whole report.

    Attributes:
        title: Of the page.
        subtitle: What, where and when.
        badges: Words with a tone, beside the title.
        cards: The summary.
        notices: What stands right below the summary.
        sections: In the order of the page.
        records: Run records that are inside the page, as JSON values.
        links: Other pages beside it, as titles and relative addresses.
    """

    title: str
    subtitle: str
    badges: tuple[Cell, ...]
    cards: tuple[Card, ...]
    notices: tuple[Text | Folded, ...]
    sections: tuple[PageSection, ...]
    records: tuple[Mapping[str, Any], ...] = field(default=())
    links: tuple[tuple[str, str], ...] = ()


def all_blocks(sections: Iterable[PageSection]) -> list[Block]:
    """Every block, those that are folded too."""
    found: list[Block] = []
    waiting = [block for section in sections for block in section.blocks]
    while waiting:
        block = waiting.pop(0)
        found.append(block)
        if isinstance(block, Folded):
            waiting = [*block.blocks, *waiting]
    return found
