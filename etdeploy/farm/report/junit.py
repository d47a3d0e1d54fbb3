"""A night as JUnit XML, as GitHub's actions, GitLab and Jenkins read it.

There is no standard; the attributes and elements here are those that the schema of Jenkins' xUnit
plug-in and the usual readers know: a suite for each device, a case for each recipe on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from xml.etree import ElementTree as Xml

from etdeploy.farm.report import words
from etdeploy.farm.report.model import FailureGroup, NightReport, VisitReference
from etdeploy.farm.verdicts.model import PairVerdict, VerdictKind

# Tells a later report of the same file from another tool's.
MARK = "<?xml version='1.0' encoding='utf-8'?>\n<testsuites name=\"etdeploy farm "
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
    for recipe, told in sorted(cases.items()):
        took = seconds.get((device, recipe), 0.0)
        element = Xml.SubElement(
            suite, "testcase", classname=_text(device), name=_text(recipe), time=f"{took:.3f}"
        )
        element.extend(_worst(told))
    suite.set("tests", str(len(cases)))
    suite.set("failures", str(len(suite.findall("testcase/failure"))))
    suite.set("errors", "0")
    suite.set("skipped", str(len(suite.findall("testcase/skipped"))))
    suite.set("time", f"{sum(seconds.get((device, recipe), 0.0) for recipe in cases):.3f}")
    suite.set("timestamp", _text(report.night.started_at[:19]))
    return suite


def _worst(told: Sequence[Xml.Element]) -> Iterator[Xml.Element]:
    """A case has one result: its first failure with the texts of all, else that it was skipped."""
    failures = [each for each in told if each.tag == "failure"]
    skips = [each for each in told if each.tag == "skipped"]
    output = [each for each in told if each.tag == "system-out"]
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
    told = Xml.Element("system-out")
    told.text = _text(f"{verdict.kind}\n") + text
    yield told


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
