"""The pages of the dashboard: now, verdicts, trends, and one for each of the latest nights."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

from etdeploy.core.commands import quoted
from etdeploy.core.console import count
from etdeploy.core.errors import UsageError
from etdeploy.core.files.basic import inside
from etdeploy.farm.report.files import PAGE_FILE
from etdeploy.farm.report.model import NightReport
from etdeploy.farm.report.page import TONES, cards, night_page, verdict_table
from etdeploy.farm.report.status import DeviceNow, Now, Status
from etdeploy.farm.report.words import when
from etdeploy.farm.verdicts.model import VerdictKind
from etdeploy.history.model import Trend
from etdeploy.history.nights import storable
from etdeploy.report.formatting import NOTHING, moment
from etdeploy.report.html.blocks import (
    BAD,
    GOOD,
    QUIET,
    WARN,
    Block,
    Card,
    Cell,
    Page,
    PageSection,
    Table,
    Text,
    table,
)
from etdeploy.report.html.page import render
from etdeploy.report.html.trends import trends_page

INDEX, HISTORY = "index.html", "history.html"
_NIGHT = "night-{}.html"
# What a file of a night may be called: its id, if it is as plain as the store makes it.
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,100}")
_MOST_WAITING = 200
_TONES = {
    Now.MEASURING: GOOD,
    Now.GATE: WARN,
    Now.AWAY: WARN,
    Now.STOPPED: WARN,
    Now.PROBLEM: BAD,
    Now.QUARANTINED: BAD,
}


@dataclass(frozen=True)
class Dashboard:
    """What the dashboard shows.

    Attributes:
        status: The latest night as it stands.
        reports: Of the latest nights, the latest first.
        trends: Of series that the latest night measured, the worst first.
    """

    status: Status
    reports: tuple[NightReport, ...] = ()
    trends: tuple[Trend, ...] = ()


def pages_of(board: Dashboard) -> dict[str, Page]:
    """The pages by their file names, the first one first.

    A night whose id is not one of the store's has none.
    """
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
        PageSection("nights", "Nights", tuple(_nights(board))),
    )
    return Page(
        title=f"Farm {status.night.farm}" if status.night else "Farm",
        subtitle=_subtitle(status),
        badges=(Cell(latest.headline, BAD if latest.exit_code else GOOD),) if latest else (),
        cards=(_progress(status), *cards(latest)[:3]) if latest else (_progress(status),),
        notices=(),
        sections=tuple(section for section in sections if section.blocks),
        links=links,
    )


def _subtitle(status: Status) -> str:
    at = f"as of {moment(status.at)}"
    if status.night is None:
        return f"no night was run yet; {at}"
    night = status.night
    if night.finished_at:
        return f"night {night.id} ended {moment(night.finished_at)}; {at}"
    end = f", expected to end {moment(status.expected_end)}" if status.expected_end else ""
    end = ", stopped" if status.stopped else end
    return f"night {night.id} began {moment(night.started_at)}{end}; {at}"


def _progress(status: Status) -> Card:
    over = status.done + status.failed + status.missed
    share = f"{100 * over // status.visits}" if status.visits else NOTHING
    lines = (f"{status.done:,} of {count(status.visits, 'visit')} measured",)
    return Card("progress", share, "%" if status.visits else "", lines)


def _devices(status: Status) -> Iterator[Block]:
    if not status.devices:
        yield Text("No device was asked for yet.", QUIET)
        return
    columns = ("device", "host", "now", "detail", "done", "failed", "missed", "left", "end (UTC)")
    rows = [_device(each) for each in status.devices]
    yield table("Devices", columns, rows, right=columns[4:])


def _device(each: DeviceNow) -> list[object]:
    end = each.expected_end[11:16] if each.expected_end else NOTHING
    return [
        each.label, each.host or NOTHING, Cell(str(each.now), _TONES.get(each.now, QUIET)),
        each.detail, each.done, each.failed, each.missed, each.left, end,
    ]  # fmt: skip


def _queue(status: Status) -> Iterator[Block]:
    shown = status.queue[:_MOST_WAITING]
    if not shown:
        yield Text("Nothing waits.", QUIET)
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


def _nights(board: Dashboard) -> Iterator[Table]:
    if board.reports:
        columns = ("night", "when", "measured", "failed", "missed", "regressed", "outcome")
        rows = [_night(report) for report in board.reports]
        yield table("Nights, the latest first", columns, rows, right=columns[2:6])


def _night(report: NightReport) -> Sequence[object]:
    told = report.totals
    return [
        report.night.id, when(report), told.done, told.failed, told.missed, told.regressed,
        Cell(report.headline, BAD if report.exit_code else GOOD),
    ]  # fmt: skip


def write_dashboard(board: Dashboard, folder: Path) -> Path:
    """Writes every page; pages of earlier nights that are there already stay.

    Args:
        board: What is shown.
        folder: Made if it is missing; the folder that it is in has to exist.

    Returns:
        The path of the first page.

    Raises:
        UsageError: The folder cannot be used, or a file in it is not one of etdeploy's pages;
            nothing was written then.
        OSError: The disk is full.
    """
    _make(folder)
    pages = {inside(folder, file): page for file, page in pages_of(board).items()}
    for path in pages:
        PAGE_FILE.require_free(path)
    # The first page last: what it leads to is there then.
    for path in reversed(pages):
        PAGE_FILE.write(storable(render(pages[path])), path)
    return (folder / INDEX).absolute()


def _make(folder: Path) -> None:
    try:
        folder.mkdir(exist_ok=True)
    except FileNotFoundError as error:
        raise UsageError(
            "the parent directory of the dashboard does not exist",
            place=str(folder.parent),
            remedy=f"Create it: mkdir -p {quoted(folder.parent)}",
        ) from error
    except OSError as error:
        raise UsageError(
            f"the dashboard's folder cannot be made: {error.strerror or error}",
            place=str(folder),
            remedy="Name another folder: --dashboard FOLDER",
        ) from error
