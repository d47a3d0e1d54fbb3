"""What a report consists of: blocks that terminal.py, markdown.py and html.py draw."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

# The meaning of a value, for its colour: a bad one is also said in words.
GOOD, WARN, BAD, QUIET = "good", "warn", "bad", "quiet"
NOTHING = "–"
"""Stands for a value that is not known."""


@dataclass(frozen=True)
class Cell:
    """A cell of a table: its text, its meaning, whether it is code, and where it leads."""

    text: str
    tone: str = ""
    code: bool = False
    address: str = ""


def code(text: str, tone: str = "") -> Cell:
    """Return a cell with a name, a digest or an option, to be shown as it is written."""
    return Cell(text, tone, code=True)


@dataclass(frozen=True)
class Card:
    """One figure of the summary.

    Attributes:
        label: Its name.
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
    """A plot, for the page only.

    Attributes:
        key: Its element's id, and its place in the page's data.
        data: Traces of plotly.js. A colour that begins with `@` is one of the theme's.
        layout: Of plotly.js, over the page's own.
        label: What the plot shows, for readers who do not see it.
        caption: What to know when reading it.
        height: In CSS pixels.
        legend: Colours with their meanings, where plotly.js draws no legend.
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
    """A small table.

    Attributes:
        label: What it shows.
        columns: Their names.
        rows: Cells in the order of the columns.
        right: Columns with numbers.
        more: What is not shown, as the line below it.
    """

    kind: ClassVar[str] = "table"
    label: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    right: tuple[str, ...] = ()
    more: str = ""


def table(
    label: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    right: Sequence[str] = (),
    more: str = "",
) -> Table:
    """Return a table of texts and cells; None is a value that is not known."""
    cells = tuple(tuple(map(_cell, row)) for row in rows)
    return Table(label, tuple(columns), cells, tuple(right), more)


def _cell(value: object) -> Cell:
    return value if isinstance(value, Cell) else Cell(NOTHING if value is None else str(value))


@dataclass(frozen=True)
class Fact:
    """A name with what is known.

    Attributes:
        label: The name.
        lines: Sentences or clauses.
        value: A number with its unit, or a word, that comes first.
        tone: Of the value.
        code: Whether the lines are names, digests or options.
    """

    label: str
    lines: tuple[str, ...]
    value: str = ""
    tone: str = ""
    code: bool = False


@dataclass(frozen=True)
class Facts:
    """Names with what is known of each."""

    kind: ClassVar[str] = "facts"
    facts: tuple[Fact, ...]


@dataclass(frozen=True)
class Text:
    """A paragraph; one with a tone stands out."""

    kind: ClassVar[str] = "text"
    text: str
    tone: str = ""
    title: str = ""


V = TypeVar("V", bound=Hashable)


class Interned(Generic[V]):
    """Values that occur in many rows, each stored once."""

    def __init__(self) -> None:
        self._places: dict[V, int] = {}

    def place(self, value: V) -> int:
        """The place of a value in `all`."""
        return self._places.setdefault(value, len(self._places))

    @property
    def all(self) -> list[V]:
        return list(self._places)


@dataclass(frozen=True)
class LargeTable:
    """A table of thousands of rows, which the page sorts, searches and filters.

    Attributes:
        key: Its place in the page's data.
        payload: Columns and rows; strings that repeat are stored once.
        label: What it shows.
        brief: The most important rows, where nothing can be sorted.
        searched: What the search is for.
        filters: Of each column that is filtered by its values: its name, and the word for all. The
            payload's `filters` has the places of the columns.
        otherwise: A command that prints the same.
    """

    kind: ClassVar[str] = "large"
    key: str
    payload: Mapping[str, Any]
    label: str
    brief: Table
    searched: str = "name, module or file"
    filters: tuple[tuple[str, str], ...] = (("Runs on", "everything"),)
    otherwise: str = "etdeploy profile --json"


@dataclass(frozen=True)
class Timeline:
    """Runs of months as points, two of which are compared, for the page only.

    Attributes:
        key: Its place in the page's data.
        payload: Runs and their numbers, column by column.
        label: What it shows.
        otherwise: A command that prints the same.
    """

    kind: ClassVar[str] = "timeline"
    key: str
    payload: Mapping[str, Any]
    label: str
    otherwise: str


@dataclass(frozen=True)
class Source:
    """Text that the page shows as it is."""

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


Block = Figure | Table | Facts | Text | LargeTable | Timeline | Source | Record | Folded


@dataclass(frozen=True)
class PageSection:
    """A part of the page with a heading and a link to it.

    Attributes:
        key: Of the link.
        title: The heading.
        blocks: Its content; a section without any is left out.
        is_open: Whether Markdown shows it, and does not fold it.
    """

    key: str
    title: str
    blocks: tuple[Block, ...]
    is_open: bool = False


@dataclass(frozen=True)
class Page:
    """A whole report.

    Attributes:
        title: Of the page.
        subtitle: Subject, place and time.
        badges: Words with a tone, beside the title.
        cards: The summary.
        notices: Texts right below the summary.
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
    records: tuple[Mapping[str, Any], ...] = ()
    links: tuple[tuple[str, str], ...] = ()


def all_blocks(sections: Iterable[PageSection]) -> list[Block]:
    """Return every block, those that are folded too."""
    found: list[Block] = []
    waiting = [block for section in sections for block in section.blocks]
    while waiting:
        block = waiting.pop(0)
        found.append(block)
        if isinstance(block, Folded):
            waiting = [*block.blocks, *waiting]
    return found
