"""A report in each of its formats, and the file that it goes to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from etdeploy.core.cancel import checkpoint
from etdeploy.core.commands import quoted
from etdeploy.core.errors import UsageError
from etdeploy.core.files.basic import inside
from etdeploy.core.files.delivery import ResultFile, begins_with
from etdeploy.core.values import StrEnum
from etdeploy.report import html, markdown, rows
from etdeploy.report.comparison import several_page
from etdeploy.report.document import Page
from etdeploy.report.page import run_page
from etdeploy.report.report_data import Report

_EXAMPLE = "report.html"


class Format(StrEnum):
    """What a report can be written as."""

    HTML = "html"
    MARKDOWN = "markdown"
    CSV = "csv"
    JSONL = "jsonl"
    PYTORCH_OSS = "pytorch-oss"

    @property
    def is_for_people(self) -> bool:
        """Whether it shows profiles and verdicts; the others have the records' figures."""
        return self in (Format.HTML, Format.MARKDOWN)


# By the end of a file's name.
SUFFIXES = {
    ".html": Format.HTML,
    ".htm": Format.HTML,
    ".md": Format.MARKDOWN,
    ".markdown": Format.MARKDOWN,
    ".csv": Format.CSV,
    ".jsonl": Format.JSONL,
}

# How each format's text begins, by which a later report knows the file as one of etdeploy's.
BEGINNINGS = {
    Format.HTML: html.MARK,
    Format.MARKDOWN: markdown.MARK,
    Format.CSV: ",".join(rows.CSV_COLUMNS),
    Format.JSONL: rows.JSONL_BEGINNING,
    Format.PYTORCH_OSS: rows.OSS_BEGINNING,
}


def render_report(report: Report, form: Format) -> str:
    """The whole report as text that ends with a line break."""
    return _WRITERS[form](report)


def _page(report: Report) -> Page:
    single = report.single
    return run_page(single) if single else several_page(report)


_WRITERS: dict[Format, Callable[[Report], str]] = {
    Format.HTML: lambda report: html.render(_page(report)),
    Format.MARKDOWN: lambda report: markdown.render(_page(report)),
    Format.CSV: lambda report: rows.csv_text(report.runs),
    Format.JSONL: lambda report: rows.json_lines(report.runs),
    Format.PYTORCH_OSS: lambda report: rows.pytorch_oss(report.runs),
}


def require_free(path: Path, form: Format) -> None:
    """Checks that a file is new, empty, or an earlier report in the same format.

    Raises:
        UsageError: It is none of these, or cannot be written; with the reason.
        OSError: The disk is full.
    """
    _file(form).require_free(path)


def write_report(text: str, path: Path, form: Format) -> Path:
    """Writes a report, all of it or nothing.

    Returns:
        The file's absolute path; where `path` is a link, of what it leads to.

    Raises:
        UsageError: The file is somebody else's, or cannot be written.
        OSError: The disk is full.
    """
    return _file(form).write(text, path)


_HISTORY_PAGE = ResultFile(
    "page", "a page of etdeploy's history", begins_with(html.HISTORY_MARK), "pages", "FOLDER"
)


def write_pages(folder: Path, names: Sequence[str], pages: Iterable[tuple[str, str]]) -> None:
    """Writes pages of a history one by one, each whole or not at all.

    Nothing else in the folder is changed, and nothing is removed.

    Args:
        folder: Is made if its parent is there.
        names: Of all pages.
        pages: Their names and texts, that which leads to the others last.

    Raises:
        UsageError: The folder cannot be used, or a file with such a name is somebody else's;
            nothing was written then.
        OSError: The disk is full.
    """
    try:
        folder.mkdir(exist_ok=True)
    except FileNotFoundError as error:
        raise UsageError(
            "the parent folder of the pages does not exist",
            place=str(folder.parent),
            remedy=f"Create it: mkdir -p {quoted(folder.parent)}",
        ) from error
    except OSError as error:
        raise UsageError(
            f"the folder of the pages cannot be created: {error.strerror or error}",
            place=str(folder),
            remedy="Name another folder.",
        ) from error
    present = {path.name for path in folder.iterdir()}
    try:
        for name in names:
            if name in present or name == names[0]:
                _HISTORY_PAGE.require_free(inside(folder, name))
    except UsageError as error:
        error.remedy = "Name another folder, or move the file."
        raise
    for name, text in pages:
        checkpoint()
        _HISTORY_PAGE.write(text, inside(folder, name))


def _file(form: Format) -> ResultFile:
    return ResultFile("report", f"a report in {form}", begins_with(BEGINNINGS[form]), _EXAMPLE)
