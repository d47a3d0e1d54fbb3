"""The pages of the dashboard: now, verdicts, trends, and one for each of the latest nights."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

from etdeploy.core.console import count
from etdeploy.core.files.basic import inside
from etdeploy.core.files.delivery import make_result_folder
from etdeploy.farm.report.forms import (
    PAGE_FILE,
    TONES,
    alert_blocks,
    cause_places,
    change_text,
    device_table,
    measured,
    since_text,
    spread_text,
    value_text,
    verdict_cell,
    verdict_table,
    when,
)
from etdeploy.farm.report.model import FailureGroup, NightReport
from etdeploy.farm.report.status import Activity, DeviceStatus, Status
from etdeploy.farm.verdicts.pair import PairVerdict, VerdictKind
from etdeploy.history.nights import storable
from etdeploy.history.series import metric_title
from etdeploy.history.trend import Trend
from etdeploy.report.document import (
    BAD,
    GOOD,
    NOTHING,
    QUIET,
    WARN,
    Block,
    Card,
    Cell,
    Folded,
    Page,
    PageSection,
    Table,
    Text,
    code,
    table,
)
from etdeploy.report.formatting import utc_text
from etdeploy.report.html import render
from etdeploy.report.plots import plot_trend
from etdeploy.report.trends import trends_page

INDEX, HISTORY = "index.html", "history.html"
_NIGHT = "night-{}.html"
# An id that may be part of a file's name, as the store makes them.
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,100}")
_MOST_WAITING = 200
_TONES = {
    Activity.MEASURING: GOOD,
    Activity.GATE: WARN,
    Activity.AWAY: WARN,
    Activity.STOPPED: WARN,
    Activity.QUARANTINED: BAD,
}


@dataclass(frozen=True)
class Dashboard:
    """What the dashboard shows: the latest night first, the worst trend first."""

    status: Status
    reports: tuple[NightReport, ...] = ()
    trends: tuple[Trend, ...] = ()


def build_pages(board: Dashboard) -> dict[str, Page]:
    """Build the pages by their file names, the first one first; a night with an odd id has none."""
    nights = {
        _NIGHT.format(report.night.id): report
        for report in board.reports
        if _PLAIN.fullmatch(report.night.id)
    }
    titles = {INDEX: "Now"} | ({HISTORY: "History"} if board.trends else {})
    titles |= {file: f"Night {report.night.id}" for file, report in nights.items()}
    links = tuple((title, quote(file)) for file, title in titles.items())
    pages = {INDEX: _index(board, links)}
    if board.trends:
        measured = {v.series for report in board.reports[:1] for v in report.verdicts if v.series}
        more = max(0, len(measured) - len(board.trends))
        pages[HISTORY] = replace(trends_page(board.trends, more), links=links)
    return pages | {file: night_page(report, links) for file, report in nights.items()}


def _index(board: Dashboard, links: tuple[tuple[str, str], ...]) -> Page:
    status = board.status
    latest = board.reports[0] if board.reports else None
    sections = (
        PageSection("devices", "Devices", tuple(_devices(status))),
        PageSection("queue", "Queue", tuple(_queue(status))),
        PageSection("regressions", "Regressions", tuple(_regressions(board))),
        PageSection("alerts", "Alerts", tuple(_open_alerts(board))),
        PageSection("nights", "Nights", tuple(_nights(board))),
    )
    return Page(
        title=f"Farm {status.night.farm}" if status.night else "Farm",
        subtitle=_subtitle(status),
        badges=(Cell(latest.summary, latest.tone),) if latest else (),
        cards=(_progress(status), *cards(latest)[:3]) if latest else (_progress(status),),
        notices=(),
        sections=tuple(section for section in sections if section.blocks),
        links=links,
    )


def _subtitle(status: Status) -> str:
    at = f"as of {utc_text(status.at)}"
    if status.night is None:
        return f"no night yet; {at}"
    night = status.night
    if night.finished_at:
        return f"night {night.id} ended {utc_text(night.finished_at)}; {at}"
    end = f", expected to end {utc_text(status.expected_end)}" if status.expected_end else ""
    end = ", stopped" if status.stopped else end
    return f"night {night.id} began {utc_text(night.started_at)}{end}; {at}"


def _progress(status: Status) -> Card:
    over = status.done + status.failed + status.missed
    share = f"{100 * over // status.visits}" if status.visits else NOTHING
    lines = (f"{status.done:,} of {count(status.visits, 'visit')} measured",)
    return Card("progress", share, "%" if status.visits else "", lines)


def _devices(status: Status) -> Iterator[Block]:
    if not status.devices:
        yield Text("There is no device yet.", QUIET)
        return
    columns = ("device", "host", "now", "detail", "done", "failed", "missed", "left", "end (UTC)")
    rows = [_device(each) for each in status.devices]
    yield table("Devices", columns, rows, right=columns[4:])


def _device(each: DeviceStatus) -> list[object]:
    end = each.expected_end[11:16] if each.expected_end else NOTHING
    return [
        each.label, each.host or NOTHING, Cell(str(each.now), _TONES.get(each.now, QUIET)),
        each.detail, each.done, each.failed, each.missed, each.left, end,
    ]  # fmt: skip


def _queue(status: Status) -> Iterator[Block]:
    shown = status.queue[:_MOST_WAITING]
    if not shown:
        yield Text("No visit is waiting.", QUIET)
        return
    columns = ("recipe", "device", "repeat", "attempts", "standing", "remark")
    rows = [
        [each.recipe, each.device, each.repeat, each.attempts, each.standing, each.detail]
        for each in shown
    ]
    yield table("Visits that are not over", columns, rows, right=columns[2:4])
    more = len(status.queue) - len(shown)
    if more:
        yield Text(f"And {count(more, 'more visit')}.", QUIET)


def _regressions(board: Dashboard) -> Iterator[Block]:
    bad = [
        verdict
        for report in board.reports[:1]
        for verdict in report.verdicts
        if verdict.kind in (VerdictKind.REGRESSED, VerdictKind.SUSPECTED)
    ]
    if not bad:
        yield Text("Nothing became worse in the latest night.", QUIET)
        return
    yield verdict_table(bad)
    for verdict in bad:
        if verdict.remedy:
            title = f"{verdict.recipe} on {verdict.device}."
            yield Text(verdict.remedy, TONES[verdict.kind], title)


def _open_alerts(board: Dashboard) -> Iterator[Block]:
    for report in board.reports[:1]:
        yield from alert_blocks(report.alerts, _MOST_ALERTS)


def _nights(board: Dashboard) -> Iterator[Table]:
    if board.reports:
        columns = ("night", "when", "measured", "failed", "missed", "regressed", "outcome")
        rows = [_night(report) for report in board.reports]
        yield table("Nights, the latest first", columns, rows, right=columns[2:6])


def _night(report: NightReport) -> Sequence[object]:
    totals = report.totals
    return [
        report.night.id, when(report), totals.done, totals.failed, totals.missed, totals.regressed,
        Cell(report.summary, report.tone),
    ]  # fmt: skip


def write_dashboard(board: Dashboard, folder: Path) -> Path:
    """Write every page and return the path of the first one; pages of earlier nights stay.

    Raises:
        UsageError: The folder cannot be used, or a file in it is not one of etdeploy's pages;
            nothing was written then.
        OSError: The disk is full.
    """
    make_result_folder(folder, "dashboard", "--dashboard FOLDER")
    pages = {inside(folder, file): page for file, page in build_pages(board).items()}
    for path in pages:
        PAGE_FILE.require_free(path)
    # The first page last: what it leads to is there then.
    for path in reversed(pages):
        PAGE_FILE.write(storable(render(pages[path])), path)
    return (folder / INDEX).absolute()


# More plots make a page that nobody scrolls through; the worst come first.
_MOST_PLOTS, _MOST_ALERTS = 24, 200


def night_page(report: NightReport, links: Sequence[tuple[str, str]] = ()) -> Page:
    """The page of a night."""
    sections = (
        PageSection("verdicts", "Verdicts", tuple(_verdicts(report))),
        PageSection("alerts", "Alerts", tuple(alert_blocks(report.alerts, _MOST_ALERTS))),
        PageSection("failures", "Failures", tuple(map(_cause, report.failures))),
        PageSection("missed", "Missed", tuple(map(_cause, report.missed))),
        PageSection("devices", "Devices", (device_table(report),) if report.devices else ()),
        PageSection("trends", "Trends", tuple(_trends(report))),
    )
    return Page(
        title=f"{report.night.farm}: night {report.night.id}",
        subtitle=f"{when(report)}; {measured(report)}",
        badges=(Cell(report.summary, report.tone),),
        cards=cards(report),
        notices=(),
        sections=tuple(section for section in sections if section.blocks),
        links=tuple(links),
    )


def cards(report: NightReport) -> tuple[Card, ...]:
    """The night in five figures."""
    totals, coverage = report.totals, report.coverage
    judged = len(report.verdicts) - totals.not_judged
    complete = coverage.judged == coverage.pairs
    acknowledged = (f"{report.acknowledged} acknowledged",) if report.acknowledged else ()
    regressed = (f"of {count(judged, 'pair')} judged", *acknowledged)
    return (
        Card("regressed", str(totals.regressed), "", regressed,
             BAD if totals.regressed > report.acknowledged else GOOD),
        Card("suspected", str(totals.suspected), "", ("the next night decides",),
             WARN if totals.suspected else ""),
        Card("failed", str(totals.failed), "", (f"of {count(totals.visits, 'visit')}",),
             BAD if totals.failed else GOOD),
        Card("missed", str(totals.missed), "", (f"{totals.done:,} measured",),
             WARN if totals.missed else ""),
        Card("judged", f"{coverage.percent:.0f}", "%", tuple(coverage.text.split("; ")),
             GOOD if complete else WARN),
    )  # fmt: skip


def _verdicts(report: NightReport) -> Iterator[Block]:
    if not report.verdicts:
        yield Text("Nothing was measured, so nothing is judged.", QUIET)
        return
    yield verdict_table(report.verdicts)
    for verdict in report.verdicts:
        if verdict.kind in (VerdictKind.REGRESSED, VerdictKind.SUSPECTED):
            yield _why(verdict)
            yield Folded(
                f"Every number of {verdict.recipe} on {verdict.device}", (_every(verdict),)
            )


def _why(verdict: PairVerdict) -> Text:
    sentences = [verdict.reason, since_text(verdict.since), verdict.remedy]
    text = ". ".join(sentence for sentence in sentences if sentence)
    return Text(text, verdict_cell(verdict).tone, f"{verdict.recipe} on {verdict.device}.")


def _every(verdict: PairVerdict) -> Table:
    rows = [
        [metric_title(each.metric), value_text(each), change_text(each),
         spread_text(each), str(each.nights), Cell(str(each.kind), TONES[each.kind]),
         each.reason]
        for each in verdict.findings
    ]  # fmt: skip
    columns = ("number", "value", "change", "between runs", "earlier nights", "verdict", "why")
    return table("Every number", columns, rows, right=columns[1:5])


def _cause(cause: FailureGroup) -> Block:
    rows = [
        [place.recipe, place.device, place.repeat, place.attempts, code(place.visit)]
        for place in cause.places
    ]
    columns = ("recipe", "device", "repeat", "attempts", "visit")
    blocks: list[Block] = [Text(f"{cause.message}", WARN, f"{cause.kind}.")]
    blocks += [Text(cause.remedy, "", "What to do.")] if cause.remedy else []
    blocks.append(table("Visits", columns, rows, right=columns[2:4]))
    return Folded(
        f"{count(len(cause.places), 'visit')}: {cause.message[:160]} ({cause_places(cause)})",
        tuple(blocks),
    )


def _trends(report: NightReport) -> Iterator[Block]:
    own = {run_id for verdict in report.verdicts for run_id in verdict.run_ids}
    for i, trend in enumerate(report.trends[:_MOST_PLOTS]):
        yield Text("", "", f"{trend.series.recipe} on {trend.series.device.label}")
        yield plot_trend(f"trend-{i}", trend, marked=own)
    series = sum(bool(verdict.series) for verdict in report.verdicts)
    more = max(series, len(report.trends)) - _MOST_PLOTS
    if more > 0:
        yield Text(f"{count(more, 'more trend')} left out: etdeploy history shows them.", QUIET)
