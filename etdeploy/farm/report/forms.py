"""A night as text, Markdown and JUnit XML, and the files of its reports."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from etdeploy.core.console import count, size
from etdeploy.core.files.delivery import ResultFile, begins_with
from etdeploy.core.layout import cut
from etdeploy.core.layout import table as text_table
from etdeploy.farm.report.model import DeviceNight, FailureGroup, NightReport, VisitReference
from etdeploy.farm.verdicts.pair import NightFinding, PairVerdict, Since, VerdictKind
from etdeploy.history.alerts import Alert, AlertGroup, AlertState
from etdeploy.history.check import OUTPUTS
from etdeploy.history.nights import storable
from etdeploy.history.series import HEADLINES, LATENCY, format_metric, metric_title
from etdeploy.report import html as page
from etdeploy.report import markdown as comment
from etdeploy.report.document import (
    BAD,
    GOOD,
    NOTHING,
    QUIET,
    WARN,
    Cell,
    Page,
    PageSection,
    Table,
    Text,
    code,
    table,
)
from etdeploy.report.formats import (
    JUnitCase,
    JUnitResult,
    junit_file,
    junit_text,
    markdown_file,
)
from etdeploy.report.formatting import percent, utc_text

TONES = {
    VerdictKind.REGRESSED: BAD,
    VerdictKind.SUSPECTED: WARN,
    VerdictKind.IMPROVED: GOOD,
    VerdictKind.NO_DIFFERENCE: QUIET,
    VerdictKind.NOT_JUDGED: QUIET,
}
_BAD = (VerdictKind.REGRESSED, VerdictKind.SUSPECTED)
_MOST_NAMES = 4


def headline_finding(verdict: PairVerdict) -> NightFinding | None:
    """The finding that a verdict is about: the worst one, else that of the headline metric."""
    same = [each for each in verdict.findings if each.kind is verdict.kind]
    heads = [each for each in verdict.findings if each.metric in HEADLINES]
    bad = verdict.kind not in (VerdictKind.NO_DIFFERENCE, VerdictKind.NOT_JUDGED)
    return next(iter((same if bad else []) + heads + same), None)


def value_text(finding: NightFinding | None) -> str:
    """The night's value with its unit, and its metric if that is not the latency."""
    if finding is None or finding.metric == OUTPUTS or finding.value is None:
        return NOTHING
    what = "" if finding.metric == LATENCY else f" {metric_title(finding.metric)}"
    disturbed = " (disturbed)" if finding.disturbed else ""
    return f"{format_metric(finding.metric, finding.value)}{what}{disturbed}"


def change_text(finding: NightFinding | None) -> str:
    """The change from the level before, in percent."""
    if finding is None or finding.ratio is None:
        return NOTHING
    return f"{100 * (finding.ratio.median - 1):+.1f} %"


def since_text(since: Since | None) -> str:
    """When a number became worse, with the commits; empty without a change."""
    if since is None:
        return ""
    when = f"since {utc_text(since.started_at)}" if since.dated else "since the last night"
    commits = f", commits {since.commits}" if since.commits else ""
    others = [text for text in since.differs if not text.startswith("recipe ")]
    return f"{when}{commits}" + (f" ({'; '.join(others)})" if others else "")


def spread_text(finding: NightFinding | None) -> str:
    """The spread between repeats of one night."""
    if finding is None or finding.within_percent is None:
        return NOTHING
    return percent(finding.within_percent)


def cause_places(cause: FailureGroup) -> str:
    """Which recipes on which devices, in a few words."""
    recipes = list(dict.fromkeys(place.recipe for place in cause.places))
    devices = list(dict.fromkeys(place.device for place in cause.places))
    return f"{_some(recipes)} on {_some(devices)}"


def health_text(device: DeviceNight) -> str:
    """Battery, temperature and room at the end of its last attempt."""
    return ", ".join(_health(device)) or NOTHING


def _health(device: DeviceNight) -> Iterator[str]:
    health = device.health
    if health is None:
        return
    if health.battery_percent is not None:
        yield f"battery {health.battery_percent} %"
    if device.warmest_celsius is not None:
        yield f"at most {device.warmest_celsius:.0f} °C"
    if health.free_bytes is not None:
        yield f"{size(health.free_bytes)} free"
    if health.thermal_status:
        yield f"thermal status {health.thermal_status}"


def _remark(device: DeviceNight) -> str:
    """Why a device measures nothing: it is quarantined, or was not there."""
    named = (("quarantined", device.quarantined), ("absent", device.absent))
    return "; ".join(f"{what}: {why}" for what, why in named if why)


def when(report: NightReport) -> str:
    night = report.night
    end = f" to {utc_text(night.finished_at)}" if night.finished_at else ", not finished"
    return f"{utc_text(night.started_at)}{end}"


def measured(report: NightReport) -> str:
    totals = report.totals
    return f"{totals.done:,} of {count(totals.visits, 'visit')} measured"


def _some(names: list[str]) -> str:
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def night_text(report: NightReport, width: int | None = None) -> str:
    """The whole report as text, verdicts first, with tables of at most `width` characters."""
    return "\n\n".join(part for part in _parts(report, width) if part)


def _parts(report: NightReport, width: int | None) -> Iterator[str]:
    night = report.night
    yield (f"{night.farm}, night {night.id}: {report.summary}\n{when(report)}; {measured(report)}")
    if report.verdicts:
        yield _verdict_lines(report, width)
    yield "\n".join(line for each in report.verdicts for line in _why(each))
    yield from (alert_group_text(group, width) for group in report.alerts)
    yield _cause_lines("failed", report.failures)
    yield _cause_lines("missed", report.missed)
    yield _device_lines(report, width)


def _verdict_lines(report: NightReport, width: int | None) -> str:
    rows = []
    for verdict in report.verdicts:
        number = headline_finding(verdict)
        is_open = verdict.kind is VerdictKind.REGRESSED and not verdict.acknowledged
        rows.append([
            verdict.recipe, verdict.device, str(len(verdict.run_ids)), value_text(number),
            change_text(number), spread_text(number),
            verdict.text.upper() if is_open else verdict.text,
        ])  # fmt: skip
    columns = ("recipe", "device", "runs", "value", "change", "between runs", "verdict")
    return text_table(columns, rows, right=columns[2:6], width=width)


def _why(verdict: PairVerdict) -> Iterator[str]:
    if verdict.kind not in _BAD and verdict.kind is not VerdictKind.NOT_JUDGED:
        return
    yield f"{verdict.recipe} on {verdict.device}: {verdict.kind}: {verdict.reason}"
    if verdict.since:
        yield f"  {since_text(verdict.since)}"
    if verdict.remedy:
        yield f"  what to do: {verdict.remedy}"


ALERT_COLUMNS = (
    "alert", "state", "since", "recipe", "device", "number", "change", "nights", "commits",
)  # fmt: skip
_ALERT_RIGHT = ("alert", "change", "nights")


def _alert_row(alert: Alert) -> list[object]:
    change = alert.change_percent
    return [
        alert.id, alert.standing, alert.since, _short(alert.recipe), _short(alert.device),
        metric_title(alert.metric), None if change is None else f"{change:+.1f} %",
        alert.nights, alert.commits or None,
    ]  # fmt: skip


def _alerts_title(group: AlertGroup) -> str:
    return f"{group.cause}: {count(len(group.alerts), 'alert')}"


def alert_group_text(group: AlertGroup, width: int | None) -> str:
    """Alerts with one cause as text, with the command that looks for it."""
    rows = [_alert_row(each) for each in group.alerts]
    found = text_table(ALERT_COLUMNS, rows, right=_ALERT_RIGHT, width=width)
    remedy = f"\nwhat to do: {group.remedy}" if group.remedy else ""
    return f"{_alerts_title(group)}\n{found}{remedy}"


def alert_blocks(groups: Sequence[AlertGroup], most: int) -> Iterator[Table | Text]:
    """Open alerts, in groups with one cause, with at most so many rows."""
    for group in groups[:most]:
        shown = group.alerts[:most]
        rows: list[list[object]] = []
        for each in shown:
            row = _alert_row(each)
            row[1] = Cell(str(row[1]), _ALERT_TONES.get(each.state, QUIET))
            rows.append(row)
        more = _more(len(group.alerts) - len(shown), "alert")
        remedy = f"What to do: {group.remedy}" if group.remedy else ""
        yield Text(cut(remedy, _LONGEST), "", _alerts_title(group))
        yield table("Alerts", ALERT_COLUMNS, rows, right=_ALERT_RIGHT, more=more)
    if left := _more(len(groups) - most, "group"):
        yield Text(left, QUIET)


_ALERT_TONES = {AlertState.OPEN: BAD, AlertState.ACKNOWLEDGED: WARN}


def _cause_lines(what: str, causes: tuple[FailureGroup, ...]) -> str:
    lines = []
    for cause in causes:
        lines.append(f"{count(len(cause.places), 'visit')} {what}: {cause_places(cause)}")
        lines.append(
            f"  {cause.kind}: {cause.message}" if what == "failed" else f"  {cause.message}"
        )
        lines += [f"  what to do: {cause.remedy}"] if cause.remedy else []
    return "\n".join(lines)


def _device_lines(report: NightReport, width: int | None) -> str:
    rows = [
        [each.label, each.host or None, str(each.done), str(each.failed), str(each.missed),
         _remark(each) or health_text(each)]
        for each in report.devices
    ]  # fmt: skip
    columns = ("device", "host", "done", "failed", "missed", "health")
    return text_table(columns, rows, right=columns[2:5], width=width) if rows else ""


# GitHub refuses a comment of 65,536 characters; a bot adds a line or two of its own.
MOST_CHARACTERS = 60_000
_MOST_WORSE = 30
_LONGEST = 600


def markdown(report: NightReport) -> str:
    """The report in fewer than 65,536 characters; the worst comes first."""
    most = _MOST_WORSE
    while len(text := comment.render(_comment(report, most))) > MOST_CHARACTERS and most:
        most //= 2
    return text


def _comment(report: NightReport, most: int) -> Page:
    """The page for a pull request, with at most so many worse pairs, and causes of failures."""
    worse = [each for each in report.verdicts if each.kind in _BAD]
    others = [each for each in report.verdicts if each.kind not in _BAD]
    named = (
        ("worse", "Worse", (_worse_table(worse, most),)),
        ("failures", "Failed", (_cause_table(report.failures, most),)),
        ("missed", "Missed", (_cause_table(report.missed, most),)),
    )
    alerts = tuple(alert_blocks(report.alerts, most))
    opened = tuple(
        PageSection(key, label, (Text("", title=f"{label}."), *tables), is_open=True)
        for key, label, tables in named
        if tables[0].rows
    )
    if alerts:
        opened = (*opened, PageSection("alerts", "Alerts", alerts, is_open=True))
    verdicts = PageSection("verdicts", f"Other verdicts ({len(others)})", (verdict_table(others),))
    devices = PageSection("devices", f"Devices ({len(report.devices)})", (device_table(report),))
    return Page(
        title=f"{_short(report.night.farm)}: {report.summary}",
        subtitle=f"Night {report.night.id}, {when(report)}; {measured(report)}.",
        badges=(),
        cards=(),
        notices=(),
        sections=(*opened, verdicts, devices),
    )


def _worse_table(verdicts: Sequence[PairVerdict], most: int) -> Table:
    rows = [
        [code(_short(each.recipe)), code(_short(each.device)),
         verdict_cell(each), cut(each.reason, _LONGEST),
         cut(since_text(each.since), _LONGEST), code(cut(each.remedy, _LONGEST))]
        for each in verdicts[:most]
    ]  # fmt: skip
    columns = ("recipe", "device", "verdict", "why", "since", "what to do")
    return table("Worse", columns, rows, more=_more(len(verdicts) - most, "worse pair"))


def _cause_table(causes: Sequence[FailureGroup], most: int) -> Table:
    rows = [
        [len(each.places), cut(cause_places(each), _LONGEST), each.kind,
         cut(each.message, _LONGEST), code(cut(each.remedy, _LONGEST))]
        for each in causes[:most]
    ]  # fmt: skip
    columns = ("visits", "recipes and devices", "kind", "reason", "what to do")
    more = _more(len(causes) - most, "cause")
    return table("Causes", columns, rows, right=("visits",), more=more)


def verdict_cell(verdict: PairVerdict) -> Cell:
    """The verdict with its tone; of an acknowledged regression, that of a warning."""
    return Cell(verdict.text, WARN if verdict.acknowledged else TONES[verdict.kind])


def verdict_table(verdicts: Sequence[PairVerdict]) -> Table:
    """A row for each recipe on each device."""
    rows = []
    for verdict in verdicts:
        number = headline_finding(verdict)
        rows.append([
            _short(verdict.recipe), _short(verdict.device),
            verdict_cell(verdict), value_text(number), change_text(number),
            spread_text(number), len(verdict.run_ids), verdict.reason,
        ])  # fmt: skip
    # On a phone, only the first columns are seen at once.
    columns = ("recipe", "device", "verdict", "value", "change", "between runs", "runs", "why")
    return table("Verdicts, the worst first", columns, rows, right=columns[3:7])


def device_table(report: NightReport) -> Table:
    """A row for each device of the night."""
    rows = [
        [_short(each.label), each.host, each.done, each.failed, each.missed, each.lost,
         each.put_off, health_text(each),
         Cell(remark, BAD) if (remark := _remark(each)) else ""]
        for each in report.devices
    ]  # fmt: skip
    columns = ("device", "host", "done", "failed", "missed", "lost", "put off", "health", "remark")
    return table("Devices", columns, rows, right=columns[2:7])


def _more(number: int, noun: str) -> str:
    return f"And {count(number, f'more {noun}')}." if number > 0 else ""


def _short(text: str) -> str:
    return cut(text, 80)


_NO_DEVICE = "no device"


def junit(report: NightReport) -> str:
    """The report as JUnit XML: a suite for each device, a case for each recipe on it."""
    seconds = _seconds(report)
    cases = [
        JUnitCase(device, recipe, tuple(results), seconds.get((device, recipe), 0.0))
        for device, recipes in _cases(report).items()
        for recipe, results in sorted(recipes.items())
    ]
    return junit_text(f"etdeploy farm {report.night.farm}", cases, report.night.started_at)


def _cases(report: NightReport) -> dict[str, dict[str, list[JUnitResult]]]:
    """What each case has to say, by device and recipe."""
    found: dict[str, dict[str, list[JUnitResult]]] = {}

    def case(device: str, recipe: str) -> list[JUnitResult]:
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
            skipped = JUnitResult("skipped", message=cause.message)
            case(place.device, place.recipe).append(skipped)
    for group in report.alerts:
        for alert in group.alerts:
            # Of a device that was not there, the night knows the name alone.
            names = (d for d in found if alert.device == d or alert.device.startswith(f"{d} ("))
            results = case(next(names, alert.device), alert.recipe)
            # Of a pair that the night did not measure, it is all that is known.
            results += [] if results else [JUnitResult("skipped", message="not measured")]
            results.append(JUnitResult("system-out", _alert_text(group, alert)))
    return found


def _alert_text(group: AlertGroup, alert: Alert) -> str:
    lines = [
        f"alert {alert.id}: {alert.standing}, since {alert.since}; {group.cause}",
        f"{metric_title(alert.metric)}: {alert.reason}",
        f"what to do: {group.remedy}" if group.remedy else "",
    ]
    return "\n".join(line for line in lines if line)


def _of_verdict(verdict: PairVerdict) -> Iterator[JUnitResult]:
    lines = [verdict.reason, since_text(verdict.since)]
    lines += [f"what to do: {verdict.remedy}"] if verdict.remedy else []
    lines += [f"{each.metric}: {each.kind}: {each.reason}" for each in verdict.findings]
    lines += [f"run {run_id}" for run_id in verdict.run_ids]
    text = "\n".join(line for line in lines if line)
    if verdict.kind is VerdictKind.REGRESSED and not verdict.acknowledged:
        yield JUnitResult("failure", text, verdict.reason, "regression")
        return
    if verdict.kind is VerdictKind.NOT_JUDGED or verdict.acknowledged:
        yield JUnitResult("skipped", message=f"{verdict.text}: {verdict.reason}")
    yield JUnitResult("system-out", f"{verdict.text}\n{text}")


def _failure(cause: FailureGroup, place: VisitReference) -> JUnitResult:
    remedy = f"\nwhat to do: {cause.remedy}" if cause.remedy else ""
    text = f"{cause.message}{remedy}\nvisit {place.visit}"
    return JUnitResult("failure", text, cause.message, cause.kind)


def _seconds(report: NightReport) -> dict[tuple[str, str], float]:
    found: dict[tuple[str, str], float] = {}
    causes = (*report.failures, *report.missed)
    for place in (*report.done, *(place for cause in causes for place in cause.places)):
        key = (place.device or _NO_DEVICE, place.recipe)
        found[key] = found.get(key, 0.0) + place.seconds
    return found


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
MARKDOWN = Form(markdown_file(f"{_COMMAND} --markdown"), markdown)
JUNIT = Form(junit_file(f"{_COMMAND} --junit"), junit)


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
