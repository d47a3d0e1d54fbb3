"""A night as Markdown and as JUnit XML; the files of its reports.

JUnit XML has no standard. The attributes and elements here are those that the schema of Jenkins'
xUnit plug-in and the usual readers know: a suite for each device, a case for each recipe on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as Xml

from etdeploy.core.console import count
from etdeploy.core.files.delivery import ResultFile, begins_with
from etdeploy.core.layout import cut
from etdeploy.farm.report import words
from etdeploy.farm.report.model import FailureGroup, NightReport, VisitReference
from etdeploy.farm.verdicts.pair import PairVerdict, VerdictKind
from etdeploy.history.nights import storable
from etdeploy.report import html as page
from etdeploy.report.markdown import details, name, prose, table

# Tells a later report of the same file from somebody's notes.
MARKDOWN_MARK = "<!-- etdeploy farm report -->"
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
    """The report in fewer than 65,536 characters; the worst comes first, and the end is cut."""
    night = report.night
    head = f"### {name(_short(night.farm))}: {prose(report.headline)}"
    when = prose(f"{words.when(report)}; {words.measured(report)}")
    subtitle = f"Night {name(night.id)}, {when}."
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
    return _bounded([MARKDOWN_MARK, head, subtitle], [block for block in blocks if block])


def _bounded(always: list[str], blocks: Sequence[str]) -> str:
    """As many blocks as there is room for, in their order."""
    parts, left_out = list(always), 0
    used = sum(len(part) + 2 for part in parts)
    for block in blocks:
        # After the first block that is left out, all others are less important.
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
        f"{sign} **{number} {what}**: {prose(cut(words.cause_places(cause), _LONGEST))}",
        prose(cut(f"{kind}{cause.message}", _LONGEST)),
    ]
    if cause.remedy:
        lines.append(f"What to do: {name(cut(cause.remedy, _LONGEST))}")
    return "<br>\n".join(lines)


def _verdicts(verdicts: Sequence[PairVerdict]) -> str:
    rows = []
    for verdict in verdicts[:_MOST_ROWS]:
        number = words.headline_finding(verdict)
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


# Tells a later report of the same file from another tool's.
JUNIT_MARK = "<?xml version='1.0' encoding='utf-8'?>\n<testsuites name=\"etdeploy farm "
_NO_DEVICE = "no device"


def junit(report: NightReport) -> str:
    """The report as XML, with a line break at its end."""
    suites = _suites(report)
    root = Xml.Element("testsuites", name=_text(f"etdeploy farm {report.night.farm}"))
    for device, cases in suites.items():
        root.append(_suite(report, device, cases))
    # The schema has no sum of those that were skipped.
    for key in ("tests", "failures", "errors"):
        root.set(key, str(sum(int(suite.get(key, "0")) for suite in root)))
    root.set("time", f"{sum(float(suite.get('time', '0')) for suite in root):.3f}")
    Xml.indent(root)
    body = Xml.tostring(root, encoding="unicode")
    return f"<?xml version='1.0' encoding='utf-8'?>\n{body}\n"


def _suites(report: NightReport) -> dict[str, dict[str, list[Xml.Element]]]:
    """What each case has to say, by device and recipe."""
    found: dict[str, dict[str, list[Xml.Element]]] = {}

    def case(device: str, recipe: str) -> list[Xml.Element]:
        return found.setdefault(device or _NO_DEVICE, {}).setdefault(recipe, [])

    for verdict in report.verdicts:
        case(verdict.device, verdict.recipe).extend(_of_verdict(verdict))
    for place in report.done:
        case(place.device, place.recipe)
    for cause in report.failures:
        for place in cause.places:
            case(place.device, place.recipe).append(_failure(cause, place))
    for cause in report.missed:
        for place in cause.places:
            case(place.device, place.recipe).append(_skipped(cause))
    return found


def _suite(report: NightReport, device: str, cases: dict[str, list[Xml.Element]]) -> Xml.Element:
    suite = Xml.Element("testsuite", name=_text(device))
    seconds = _seconds(report)
    for recipe, elements in sorted(cases.items()):
        took = seconds.get((device, recipe), 0.0)
        element = Xml.SubElement(
            suite, "testcase", classname=_text(device), name=_text(recipe), time=f"{took:.3f}"
        )
        element.extend(_worst(elements))
    suite.set("tests", str(len(cases)))
    suite.set("failures", str(len(suite.findall("testcase/failure"))))
    suite.set("errors", "0")
    suite.set("skipped", str(len(suite.findall("testcase/skipped"))))
    suite.set("time", f"{sum(seconds.get((device, recipe), 0.0) for recipe in cases):.3f}")
    suite.set("timestamp", _text(report.night.started_at[:19]))
    return suite


def _worst(elements: Sequence[Xml.Element]) -> Iterator[Xml.Element]:
    """A case has one result: its first failure with the texts of all, else that it was skipped."""
    failures = [each for each in elements if each.tag == "failure"]
    skips = [each for each in elements if each.tag == "skipped"]
    output = [each for each in elements if each.tag == "system-out"]
    if failures:
        first = failures[0]
        first.text = "\n\n".join(dict.fromkeys(each.text or "" for each in failures))
        yield first
    elif skips:
        yield skips[0]
    if output:
        yield output[0]


def _of_verdict(verdict: PairVerdict) -> Iterator[Xml.Element]:
    lines = [verdict.reason, words.since_text(verdict.since)]
    lines += [f"what to do: {verdict.remedy}"] if verdict.remedy else []
    lines += [f"{each.metric}: {each.kind}: {each.reason}" for each in verdict.findings]
    lines += [f"run {run_id}" for run_id in verdict.run_ids]
    text = _text("\n".join(line for line in lines if line))
    if verdict.kind is VerdictKind.REGRESSED:
        failure = Xml.Element("failure", type="regression", message=_text(verdict.reason))
        failure.text = text
        yield failure
        return
    elements = Xml.Element("system-out")
    elements.text = _text(f"{verdict.kind}\n") + text
    yield elements


def _failure(cause: FailureGroup, place: VisitReference) -> Xml.Element:
    failure = Xml.Element("failure", type=_text(cause.kind), message=_text(cause.message))
    remedy = f"\nwhat to do: {cause.remedy}" if cause.remedy else ""
    failure.text = _text(f"{cause.message}{remedy}\nvisit {place.visit}")
    return failure


def _skipped(cause: FailureGroup) -> Xml.Element:
    return Xml.Element("skipped", message=_text(cause.message))


def _seconds(report: NightReport) -> dict[tuple[str, str], float]:
    found: dict[tuple[str, str], float] = {}
    causes = (*report.failures, *report.missed)
    for place in (*report.done, *(place for cause in causes for place in cause.places)):
        key = (place.device or _NO_DEVICE, place.recipe)
        found[key] = found.get(key, 0.0) + place.seconds
    return found


def _text(text: str) -> str:
    """Without the characters that XML 1.0 does not have, even escaped."""
    return "".join(c if _is_xml(ord(c)) else "\N{REPLACEMENT CHARACTER}" for c in text)


def _is_xml(code: int) -> bool:
    return (
        code in (0x9, 0xA, 0xD)
        or 0x20 <= code <= 0xD7FF
        or 0xE000 <= code <= 0xFFFD
        or 0x10000 <= code <= 0x10FFFF
    )


_COMMAND = "etdeploy farm report"


@dataclass(frozen=True)
class Form:
    """A form of the report: its file, and what writes its text."""

    file: ResultFile
    text: Callable[[NightReport], str]


def _html(report: NightReport) -> str:
    from etdeploy.farm.report.pages import night_page

    return page.render(night_page(report))


PAGE_FILE = ResultFile(
    "report", "a report in html", begins_with(page.MARK), "night.html", f"{_COMMAND} --html"
)
HTML = Form(PAGE_FILE, _html)
MARKDOWN = Form(
    ResultFile(
        "report", "a farm's report in Markdown", begins_with(MARKDOWN_MARK), "night.md",
        f"{_COMMAND} --markdown",
    ),
    markdown,
)  # fmt: skip
JUNIT = Form(
    ResultFile(
        "report", "a farm's report in JUnit XML", begins_with(JUNIT_MARK), "junit.xml",
        f"{_COMMAND} --junit",
    ),
    junit,
)  # fmt: skip


@dataclass(frozen=True)
class RequestedReports:
    """Paths of the reports to write; None for the others."""

    html: Path | None = None
    markdown: Path | None = None
    junit: Path | None = None

    def forms(self) -> list[tuple[Form, Path]]:
        named = ((HTML, self.html), (MARKDOWN, self.markdown), (JUNIT, self.junit))
        return [(form, path) for form, path in named if path is not None]


def require_free(wanted: RequestedReports) -> None:
    """Raise a UsageError if a file is not one of etdeploy's reports, or cannot be written."""
    for form, path in wanted.forms():
        form.file.require_free(path)


def write(report: NightReport, wanted: RequestedReports) -> list[Path]:
    """Write the reports atomically and return their paths; nothing if one cannot be written."""
    require_free(wanted)
    # A device's output may have characters that cannot be encoded.
    return [form.file.write(storable(form.text(report)), path) for form, path in wanted.forms()]
