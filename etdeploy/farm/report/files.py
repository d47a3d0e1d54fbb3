"""Writes a night's reports, over nothing but earlier ones of their kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from etdeploy.core.console import count
from etdeploy.core.files.results import ResultFile, begins_with
from etdeploy.core.layout import cut
from etdeploy.farm.report import junit, words
from etdeploy.farm.report.model import FailureGroup, NightReport
from etdeploy.farm.verdicts.model import PairVerdict, VerdictKind
from etdeploy.history.nights import storable
from etdeploy.report.html import page
from etdeploy.report.markdown import details, name, prose, table

# Tells a later report of the same file from somebody's notes.
MARK = "<!-- etdeploy farm report -->"
# GitHub refuses a comment of 65,536 characters; a bot adds a line or two of its own.
MOST_CHARACTERS = 60_000
_MOST_WORSE = 30
_MOST_CAUSES = 10
_MOST_ROWS = 100
_LONGEST = 600
_SIGNS = {
    VerdictKind.REGRESSED: "🔴",
    VerdictKind.SUSPECTED: "🟠",
    VerdictKind.IMPROVED: "🟢",
    VerdictKind.NO_DIFFERENCE: "⚪",
    VerdictKind.NOT_JUDGED: "⚠️",
}
_BAD = (VerdictKind.REGRESSED, VerdictKind.SUSPECTED)


def markdown(report: NightReport) -> str:
    """The report in fewer than 65,536 characters, the worst first: the rest is left out first."""
    night = report.night
    head = f"### {name(_short(night.farm))}: {prose(report.headline)}"
    told = f"Night {name(night.id)}, {prose(words.when(report))}; {prose(words.measured(report))}."
    worse = [each for each in report.verdicts if each.kind in _BAD]
    others = [each for each in report.verdicts if each.kind not in _BAD]
    blocks = [
        *(_worse(verdict) for verdict in worse[:_MOST_WORSE]),
        _rest(len(worse) - _MOST_WORSE, "worse pair"),
        *(_cause("failed", each) for each in report.failures[:_MOST_CAUSES]),
        _rest(len(report.failures) - _MOST_CAUSES, "cause of failures"),
        *(_cause("missed", each) for each in report.missed[:_MOST_CAUSES]),
        _rest(len(report.missed) - _MOST_CAUSES, "reason of missed visits"),
        details(f"Other verdicts ({len(others)})", _verdicts(others)) if others else "",
        details(f"Devices ({len(report.devices)})", _devices(report)) if report.devices else "",
    ]
    return _bounded([MARK, head, told], [block for block in blocks if block])


def _bounded(always: list[str], blocks: Sequence[str]) -> str:
    """As many blocks as there is room for, in their order."""
    parts, left_out = list(always), 0
    used = sum(len(part) + 2 for part in parts)
    for block in blocks:
        # Once something is left out, what comes behind it is less important.
        if left_out or used + len(block) + 2 > MOST_CHARACTERS:
            left_out += 1
            continue
        parts.append(block)
        used += len(block) + 2
    if left_out:
        parts.append(f"_{count(left_out, 'section')} left out, since a comment has a limit._")
    return "\n\n".join(parts) + "\n"


def _worse(verdict: PairVerdict) -> str:
    kind = f"{_SIGNS[verdict.kind]} **{verdict.kind}**"
    lines = [f"{kind} {_pair(verdict)}: {prose(cut(verdict.reason, _LONGEST))}"]
    if verdict.since:
        lines.append(prose(cut(words.since_text(verdict.since), _LONGEST)))
    if verdict.remedy:
        lines.append(name(cut(verdict.remedy, _LONGEST)))
    return "<br>\n".join(lines)


def _cause(what: str, cause: FailureGroup) -> str:
    sign = "❌" if what == "failed" else "⏭️"
    number = count(len(cause.places), "visit")
    kind = f"{cause.kind}: " if what == "failed" else ""
    lines = [
        f"{sign} **{number} {what}**: {prose(cut(words.where(cause), _LONGEST))}",
        prose(cut(f"{kind}{cause.message}", _LONGEST)),
    ]
    if cause.remedy:
        lines.append(f"What to do: {name(cut(cause.remedy, _LONGEST))}")
    return "<br>\n".join(lines)


def _verdicts(verdicts: Sequence[PairVerdict]) -> str:
    rows = []
    for verdict in verdicts[:_MOST_ROWS]:
        number = words.first_number(verdict)
        rows.append((
            name(_short(verdict.recipe)), name(_short(verdict.device)), words.value_text(number),
            words.change_text(number), words.spread_text(number),
            f"{_SIGNS[verdict.kind]} {verdict.kind}",
        ))  # fmt: skip
    columns = ("recipe", "device", "value", "change", "between runs", "verdict")
    text = table(columns, rows, right=columns[2:5])
    more = _rest(len(verdicts) - len(rows), "verdict")
    return text + (f"\n\n{more}" if more else "")


def _devices(report: NightReport) -> str:
    rows = [
        (name(_short(each.label)), name(_short(each.host or "-")), str(each.done),
         str(each.failed), str(each.missed),
         prose(_state(each.quarantined, words.health_text(each))))
        for each in report.devices[:_MOST_ROWS]
    ]  # fmt: skip
    columns = ("device", "host", "done", "failed", "missed", "health")
    more = _rest(len(report.devices) - len(rows), "device")
    return table(columns, rows, right=columns[2:5]) + (f"\n\n{more}" if more else "")


def _state(quarantined: str, health: str) -> str:
    return f"quarantined: {cut(quarantined, _LONGEST)}" if quarantined else health


def _pair(verdict: PairVerdict) -> str:
    return f"{name(_short(verdict.recipe))} on {name(_short(verdict.device))}"


def _rest(more: int, noun: str) -> str:
    return f"_and {count(more, f'more {noun}')}_" if more > 0 else ""


def _short(text: str) -> str:
    return cut(text, 80)


_COMMAND = "etdeploy farm report"


@dataclass(frozen=True)
class Form:
    """A form of the report: its file, and what writes its text."""

    file: ResultFile
    text: Callable[[NightReport], str]


def _html(report: NightReport) -> str:
    from etdeploy.farm.report.page import night_page

    return page.render(night_page(report))


PAGE_FILE = ResultFile(
    "report", "a report in html", begins_with(page.MARK), "night.html", f"{_COMMAND} --html"
)
HTML = Form(PAGE_FILE, _html)
MARKDOWN = Form(
    ResultFile(
        "report", "a farm's report in Markdown", begins_with(MARK), "night.md",
        f"{_COMMAND} --markdown",
    ),
    markdown,
)  # fmt: skip
JUNIT = Form(
    ResultFile(
        "report", "a farm's report in JUnit XML", begins_with(junit.MARK), "junit.xml",
        f"{_COMMAND} --junit",
    ),
    junit.junit,
)  # fmt: skip


@dataclass(frozen=True)
class RequestedReports:
    """Files that are wanted; None for those that are not."""

    html: Path | None = None
    markdown: Path | None = None
    junit: Path | None = None

    def forms(self) -> list[tuple[Form, Path]]:
        """Each that is wanted with its file."""
        named = ((HTML, self.html), (MARKDOWN, self.markdown), (JUNIT, self.junit))
        return [(form, path) for form, path in named if path is not None]


def require_free(wanted: RequestedReports) -> None:
    """Checks every file before anything is written.

    Raises:
        UsageError: One is somebody else's, or cannot be written.
        OSError: The disk is full.
    """
    for form, path in wanted.forms():
        form.file.require_free(path)


def write(report: NightReport, wanted: RequestedReports) -> list[Path]:
    """Writes the reports that are wanted, each whole or not at all; returns their paths.

    Raises:
        UsageError: One is somebody else's, or cannot be written; nothing was written then.
        OSError: The disk is full.
    """
    require_free(wanted)
    # What a device said may have characters that no file can.
    return [form.file.write(storable(form.text(report)), path) for form, path in wanted.forms()]
