"""Writes a night's reports, over nothing but earlier ones of their kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from etdeploy.core.files.results import ResultFile, begins_with
from etdeploy.farm.report.model import NightReport
from etdeploy.farm.report.shown import junit, markdown
from etdeploy.history.nights import storable
from etdeploy.report.html import page

_COMMAND = "etdeploy farm report"


@dataclass(frozen=True)
class Form:
    """A form of the report: its file, and what writes its text."""

    file: ResultFile
    text: Callable[[NightReport], str]


def _html(report: NightReport) -> str:
    from etdeploy.farm.report.shown.page import night_page

    return page.render(night_page(report))


PAGE_FILE = ResultFile(
    "report", "a report in html", begins_with(page.MARK), "night.html", f"{_COMMAND} --html"
)
HTML = Form(PAGE_FILE, _html)
MARKDOWN = Form(
    ResultFile(
        "report", "a farm's report in Markdown", begins_with(markdown.MARK), "night.md",
        f"{_COMMAND} --markdown",
    ),
    markdown.markdown,
)  # fmt: skip
JUNIT = Form(
    ResultFile(
        "report", "a farm's report in JUnit XML", begins_with(junit.MARK), "junit.xml",
        f"{_COMMAND} --junit",
    ),
    junit.junit,
)  # fmt: skip


@dataclass(frozen=True)
class Wanted:
    """Files that are wanted; None for those that are not."""

    html: Path | None = None
    markdown: Path | None = None
    junit: Path | None = None

    def forms(self) -> list[tuple[Form, Path]]:
        """Each that is wanted with its file."""
        named = ((HTML, self.html), (MARKDOWN, self.markdown), (JUNIT, self.junit))
        return [(form, path) for form, path in named if path is not None]


def require_free(wanted: Wanted) -> None:
    """Checks every file before anything is written.

    Raises:
        UsageError: One is somebody else's, or cannot be written.
        OSError: The disk is full.
    """
    for form, path in wanted.forms():
        form.file.require_free(path)


def write(report: NightReport, wanted: Wanted) -> list[Path]:
    """Writes the reports that are wanted, each whole or not at all; returns their paths.

    Raises:
        UsageError: One is somebody else's, or cannot be written; nothing was written then.
        OSError: The disk is full.
    """
    require_free(wanted)
    # What a device said may have characters that no file can.
    return [form.file.write(storable(form.text(report)), path) for form, path in wanted.forms()]
