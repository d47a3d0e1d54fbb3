"""A report in each of its formats, and the file that it goes to; JUnit XML for CI.

JUnit XML has no standard. The attributes and elements here are those that the schema of Jenkins'
xUnit plug-in and the usual readers know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from xml.etree import ElementTree as Xml

from etdeploy.core.cancel import checkpoint
from etdeploy.core.errors import UsageError
from etdeploy.core.files.basic import inside
from etdeploy.core.files.delivery import ResultFile, begins_with, make_result_folder
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
    make_result_folder(folder, "pages", "FOLDER")
    present = {path.name for path in folder.iterdir()}
    try:
        for name in names:
            if name in present or name == names[0]:
                _HISTORY_PAGE.require_free(inside(folder, name))
        for name, text in pages:
            checkpoint()
            _HISTORY_PAGE.write(text, inside(folder, name))
    except UsageError as error:
        error.remedy = "Name another folder, or move the file."
        raise


def _file(form: Format) -> ResultFile:
    return ResultFile("report", f"a report in {form}", begins_with(BEGINNINGS[form]), _EXAMPLE)


# Tells a later report of the same file from another tool's.
JUNIT_MARK = "<?xml version='1.0' encoding='utf-8'?>\n<testsuites name=\"etdeploy "


def junit_file(option: str) -> ResultFile:
    """The file of a report in JUnit XML that an option of the command line names."""
    return ResultFile(
        "report", "a report in JUnit XML", begins_with(JUNIT_MARK), "junit.xml", option
    )


def markdown_file(option: str) -> ResultFile:
    """The same for a report in Markdown."""
    mark = begins_with(markdown.MARK)
    return ResultFile("report", "a report in Markdown", mark, "report.md", option)


@dataclass(frozen=True)
class JUnitResult:
    """What a test case has to say.

    Attributes:
        tag: `failure`, `skipped` or `system-out`.
        text: In full, for a failure and for output.
        message: In a sentence, for a failure and for what was skipped.
        kind: Of a failure.
    """

    tag: str
    text: str = ""
    message: str = ""
    kind: str = ""


@dataclass(frozen=True)
class JUnitCase:
    """A test case: its suite, its name, and how long it took."""

    suite: str
    name: str
    results: tuple[JUnitResult, ...] = ()
    seconds: float = 0.0


def junit_text(name: str, cases: Sequence[JUnitCase], started_at: str) -> str:
    """The cases as XML, with a line break at its end.

    Args:
        name: What the command and its subject are; begins with `etdeploy `.
        cases: In the order of the suites and, within each, of the cases.
        started_at: ISO 8601.
    """
    suites: dict[str, list[JUnitCase]] = {}
    for case in cases:
        suites.setdefault(case.suite, []).append(case)
    root = Xml.Element("testsuites", name=_xml(name))
    root.extend(_suite(label, of, started_at) for label, of in suites.items())
    # The schema has no sum of those that were skipped.
    for key in ("tests", "failures", "errors"):
        root.set(key, str(sum(int(suite.get(key, "0")) for suite in root)))
    root.set("time", f"{sum(case.seconds for case in cases):.3f}")
    Xml.indent(root)
    return f"<?xml version='1.0' encoding='utf-8'?>\n{Xml.tostring(root, encoding='unicode')}\n"


def _suite(label: str, cases: Sequence[JUnitCase], started_at: str) -> Xml.Element:
    suite = Xml.Element("testsuite", name=_xml(label))
    for case in cases:
        element = Xml.SubElement(
            suite, "testcase", classname=_xml(label), name=_xml(case.name),
            time=f"{case.seconds:.3f}",
        )  # fmt: skip
        element.extend(map(_element, _single_result(case.results)))
    suite.set("tests", str(len(cases)))
    suite.set("failures", str(len(suite.findall("testcase/failure"))))
    suite.set("errors", "0")
    suite.set("skipped", str(len(suite.findall("testcase/skipped"))))
    suite.set("time", f"{sum(case.seconds for case in cases):.3f}")
    suite.set("timestamp", _xml(started_at[:19]))
    return suite


def _single_result(results: Sequence[JUnitResult]) -> Iterator[JUnitResult]:
    """A case has one result: its first failure with the texts of all, else that it was skipped."""
    failures = [each for each in results if each.tag == "failure"]
    if failures:
        text = "\n\n".join(dict.fromkeys(each.text for each in failures))
        yield replace(failures[0], text=text)
    else:
        yield from [each for each in results if each.tag == "skipped"][:1]
    if output := [each.text for each in results if each.tag == "system-out"]:
        yield JUnitResult("system-out", "\n\n".join(output))


def _element(result: JUnitResult) -> Xml.Element:
    attributes = {"type": result.kind, "message": result.message}
    element = Xml.Element(result.tag, {k: _xml(v) for k, v in attributes.items() if v})
    element.text = _xml(result.text) or None
    return element


def _xml(text: str) -> str:
    """Without the characters that XML 1.0 does not have, even escaped."""
    return "".join(c if _is_xml(ord(c)) else "\N{REPLACEMENT CHARACTER}" for c in text)


def _is_xml(code: int) -> bool:
    return (
        code in (0x9, 0xA, 0xD)
        or 0x20 <= code <= 0xD7FF
        or 0xE000 <= code <= 0xFFFD
        or 0x10000 <= code <= 0x10FFFF
    )
