"""A report in each of its formats."""

from __future__ import annotations

from collections.abc import Callable

from etdeploy.core.kinds import Kind
from etdeploy.report.html import page
from etdeploy.report.html.several import several_page
from etdeploy.report.html.single import single_page
from etdeploy.report.material import Report
from etdeploy.report.plain import markdown, pytorch_oss, rows


class Format(Kind):
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
    Format.HTML: page.MARK,
    Format.MARKDOWN: markdown.MARK,
    Format.CSV: ",".join(rows.CSV_COLUMNS),
    Format.JSONL: rows.JSONL_BEGINNING,
    Format.PYTORCH_OSS: pytorch_oss.BEGINNING,
}


def text_of(report: Report, form: Format) -> str:
    """The whole report as text that ends with a line break."""
    return _WRITERS[form](report)


def _html(report: Report) -> str:
    single = report.single
    return page.render(single_page(single) if single else several_page(report))


_WRITERS: dict[Format, Callable[[Report], str]] = {
    Format.HTML: _html,
    Format.MARKDOWN: markdown.markdown,
    Format.CSV: lambda report: rows.csv_text(report.runs),
    Format.JSONL: lambda report: rows.json_lines(report.runs),
    Format.PYTORCH_OSS: lambda report: pytorch_oss.pytorch_oss(report.runs),
}
