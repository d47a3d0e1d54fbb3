"""etdeploy history, with export and import, and etdeploy check."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import click

from etdeploy.cli.options import options, require_metric
from etdeploy.core import console
from etdeploy.core.commands import quoted
from etdeploy.core.errors import EtdeployError, RegressionError, UsageError

if TYPE_CHECKING:
    from etdeploy.bench.records.stored import StoredRun
    from etdeploy.history.check import Check, CheckOptions
    from etdeploy.history.location import HistoryLocation
    from etdeploy.history.nights import DeviceHealth
    from etdeploy.history.series import Series
    from etdeploy.history.store.store import Filter, Store
    from etdeploy.history.trend import Trend

# Longer lists need a filter.
_SERIES = 30
# Invalid lines in a message; the JSON has all.
_MOST_BAD = 20
_LIST_RUNS = 40
_PAGE = "etdeploy-history.html"
_AGO = re.compile(r"(\d+)\s*([dhw])")
_KEY = re.compile(r"[0-9a-f]{4,16}")
_HOURS = {"h": 1, "d": 24, "w": 24 * 7}


def _since(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    """A date, or how long ago: `2026-11-01`, `30d`."""
    if value is None:
        return None
    if ago := _AGO.fullmatch(value.strip()):
        hours = int(ago[1]) * _HOURS[ago[2]]
        try:
            time = datetime.now(timezone.utc) - timedelta(hours=hours)
        except OverflowError:
            time = datetime.min.replace(tzinfo=timezone.utc)
        return time.isoformat(timespec="seconds")
    from etdeploy.history.entry import utc

    try:
        return utc(datetime.fromisoformat(value).isoformat())
    except ValueError as error:
        raise click.BadParameter("this is neither a date, 2026-11-01, nor a time, 30d") from error


def _series_key(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    if value is not None and not _KEY.fullmatch(value):
        raise click.BadParameter(
            f"{value!r} is not the key of a series, 4 to 16 digits such as 1a2b3c4d; "
            "`etdeploy history` lists them"
        )
    return value


@click.group(invoke_without_command=True)
@click.option("-r", "--recipe", metavar="NAME", help="Only this recipe.")
@click.option(
    "-d", "--device", metavar="DEVICE", help="Only devices with this in their name or model."
)
@click.option(
    "--series",
    callback=_series_key,
    metavar="KEY",
    help="Only this series: its key in the list of series, or how the key begins.",
)
@click.option(
    "-m",
    "--metric",
    metavar="NAME",
    help="latency_ms, first_inference_ms, load_ms, peak_rss_bytes or program_bytes; with several "
    "sizes also latency_ms@SIZE. For generated text token_ms and ttft_ms, or one point, like "
    "token_ms@p512-n64-d0. By default latency_ms or token_ms.",
)
@click.option("--since", callback=_since, metavar="DATE|30d", help="Only runs since then.")
@click.option(
    "--limit",
    type=click.IntRange(min=1, max=5000),
    default=100,
    show_default=True,
    metavar="N",
    help="Show the latest N runs of each series.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(("text", "html")),
    help="By default text, or html with --output.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help=f"The HTML page, which works offline. By default {_PAGE}.",
)
@options("store", "json")
@click.pass_context
def history(
    ctx: click.Context,
    recipe: str | None,
    device: str | None,
    series: str | None,
    metric: str | None,
    since: str | None,
    limit: int,
    form: str | None,
    output: Path | None,
    store: str | None,
    as_json: bool,
) -> None:
    """Show how the numbers of a recipe changed over time, and when.

    Runs that measured the same thing on the same device form a series. Several series are listed; a
    single one is shown with its changes and its latest runs.
    """
    from etdeploy.history.location import require_location
    from etdeploy.history.store.store import Filter

    require_metric(metric)
    page = _page(form, output, as_json)
    place = require_location(store)
    wanted = Filter(recipe=recipe, device=device, series=series, since=since)
    ctx.obj = (place, wanted)
    if ctx.invoked_subcommand is not None:
        return
    with _opened(place) as opened:
        whole = as_json or page is not None
        trends, more = _trends(opened, wanted, metric, limit, whole) if opened else ([], 0)
    if as_json:
        console.result_json([trend.model_dump(mode="json") for trend in trends])
    elif trends and page:
        _write_page(trends, more, page)
    elif trends:
        _show(trends, more, store)
    else:
        console.result(f"no {'matching ' if wanted != Filter() else ''}runs in {place.shown}")


@history.command("export")
@click.argument("file", default="-", type=click.Path(path_type=Path, dir_okay=False))
@click.pass_obj
def export(obj: tuple[HistoryLocation, Filter], file: Path) -> None:
    """Write complete records as JSON lines to FILE or stdout, the oldest first.

    Options before `export` select the records.
    """
    from etdeploy.history.jsonl import to_lines, write_lines

    place, wanted = obj
    with _opened(place) as opened:
        lines = to_lines(opened.contents(wanted)) if opened else iter(())
        if str(file) == "-":
            for line in lines:
                console.result(line)
            return
        written = write_lines(file, lines)
    console.message(f"{console.count(written, 'record')} written to {file}")


@history.command("import")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@options("json")
@click.pass_obj
def import_(obj: tuple[HistoryLocation, Filter], files: tuple[str, ...], as_json: bool) -> None:
    """Add records to the history.

    FILE has JSON lines, or is a run's folder or record; - is stdin. Records that the history has
    already do not change. Invalid lines are listed, and the others imported; the exit code is then
    2.
    """
    from etdeploy.history.jsonl import import_all
    from etdeploy.history.store.store import open_store

    place, _ = obj
    with open_store(place) as store:
        done = import_all(store, files, sys.stdin.buffer)
    if as_json:
        console.result_json({"new": done.new, "known": done.known, "bad": done.bad})
    else:
        new = console.count(done.new, "new record")
        console.result(f"{new} in {place.shown}, {done.known:,} known already")
    if done.bad:
        more = len(done.bad) - _MOST_BAD
        shown = [*done.bad[:_MOST_BAD], *([f"and {more:,} more"] if more > 0 else [])]
        raise UsageError(
            f"{console.count(len(done.bad), 'record')} could not be imported:\n  "
            + "\n  ".join(shown)
        )


@history.command("pages")
@click.argument("folder", metavar="FOLDER", type=click.Path(path_type=Path, file_okay=False))
@click.pass_obj
def pages(obj: tuple[HistoryLocation, Filter], folder: Path) -> None:
    """Write static pages to FOLDER: one for each series, an index, and the health of devices.

    They work offline. Options before `pages` select the series and the time. Commits are links
    where the repository of the working folder has them. Files that etdeploy did not write are left
    alone.
    """
    place, wanted = obj
    with _opened(place) as opened:
        index = write_history_pages(opened, place, wanted, folder) if opened else None
    if index is None:
        raise UsageError("there are no runs to show", place=place.shown)
    console.result(str(index))


def write_history_pages(
    store: Store, place: HistoryLocation, wanted: Filter, folder: Path
) -> Path | None:
    """Write the pages of all series; return the path of the first one, None without any run."""
    from etdeploy.history.entry import find_commit_links
    from etdeploy.history.series import distinct_labels
    from etdeploy.history.store.alerts import alerts_of_series
    from etdeploy.history.trend import compute_series_trends
    from etdeploy.report.formats import write_pages
    from etdeploy.report.html import HISTORY_MARK, render
    from etdeploy.report.trends import (
        DEVICES,
        INDEX,
        SeriesIndex,
        devices_page,
        series_file,
        series_page,
    )

    listed = {each.series.key: each.series for each in store.series(wanted)}
    if not listed:
        return None
    labels = dict(zip(listed, distinct_labels(list(listed.values())), strict=True))
    with store.transaction() as connection:
        alerts = alerts_of_series(connection, list(listed))
    links = find_commit_links(Path(), store.revisions(wanted.since))
    days = _device_health(place, store, wanted)
    since = f" since {wanted.since[:10]}" if wanted.since else ""
    counted = "one series" if len(listed) == 1 else f"{len(listed):,} series"

    def texts() -> Iterator[tuple[str, str]]:
        index, runs = SeriesIndex(), 0
        for key, entries in store.entries_of_series(list(listed), wanted.since):
            trends = compute_series_trends(listed[key], entries, alerts.get(key, ()))
            index.add(trends, labels[key])
            runs += len(entries)
            page = series_page(trends, labels[key], links)
            yield series_file(key), render(page, HISTORY_MARK)
        subtitle = f"{counted}, {console.count(runs, 'run')}{since}"
        yield DEVICES, render(devices_page(days, f"by week{since}"), HISTORY_MARK)
        yield INDEX, render(index.page(subtitle), HISTORY_MARK)

    write_pages(folder, [INDEX, DEVICES, *map(series_file, listed)], texts())
    return (folder / INDEX).absolute()


@history.command("devices")
@options("json")
@click.pass_obj
def devices(obj: tuple[HistoryLocation, Filter], as_json: bool) -> None:
    """Show how often each device failed, was disturbed or quarantined, by week.

    `--device` and `--since` before `devices` select. Failures are attempts of a farm's nights.
    """
    from etdeploy.report.terminal import render
    from etdeploy.report.trends import device_table

    place, wanted = obj
    if wanted.recipe or wanted.series:
        raise UsageError(
            "the health of a device is about all of its recipes",
            remedy="Leave out --recipe and --series.",
        )
    with _opened(place) as opened:
        found = _device_health(place, opened, wanted) if opened else ()
    if as_json:
        console.result_json([each.model_dump(mode="json") for each in found])
    elif found:
        width = console.width()
        console.result(render([device_table(found)], width))
    else:
        console.result(f"no {'matching ' if wanted.device else ''}devices in {place.shown}")


def _device_health(
    place: HistoryLocation, store: Store, wanted: Filter
) -> tuple[DeviceHealth, ...]:
    from etdeploy.device_pool import quarantined_devices
    from etdeploy.history.nights import device_health
    from etdeploy.history.store.nights import device_days

    with store.transaction() as connection:
        days, names = device_days(connection, wanted.since)
    reasons = {each.night_identity: each.reason for each in quarantined_devices(place)}
    part = (wanted.device or "").casefold()
    return tuple(
        each for each in device_health(days, names, reasons) if part in each.device.casefold()
    )


@contextmanager
def _opened(place: HistoryLocation) -> Iterator[Store | None]:
    """Open the history for reading, with queued records; None if there is none yet."""
    from etdeploy.history.record_sink import import_pending
    from etdeploy.history.store.store import open_store

    trouble = None
    try:
        import_pending(place)
    except EtdeployError as error:
        trouble = error
    if place.file and not place.file.exists():
        yield None
        return
    with open_store(place, read_only=True) as store:
        if trouble:  # otherwise opening it for reading has failed, too
            console.warn(f"queued records cannot be imported: {trouble}")
        yield store


def _trends(
    store: Store, wanted: Filter, metric: str | None, limit: int, whole: bool
) -> tuple[list[Trend], int]:
    """Return the trends of the latest series, and how many more there are."""
    from dataclasses import replace

    from etdeploy.history.trend import compute_trend

    known = store.series(wanted)
    single = len(known) == 1
    many = limit if single or whole else min(limit, _LIST_RUNS)
    trends = []
    for one in known[:_SERIES]:
        entries = store.entries(replace(wanted, series=one.series.key), many)
        trends.append(compute_trend(one.series, entries, metric or one.series.metric, one.runs))
    return trends, len(known) - len(trends)


def _page(form: str | None, output: Path | None, as_json: bool) -> Path | None:
    """Return the path of the page; None for text."""
    if form != "html" and (form or not output):
        if output:
            raise UsageError(
                "--output is for a page", remedy="Leave out --format, or use --format html."
            )
        return None
    if as_json:
        raise UsageError("choose one of --json and an HTML page")
    from etdeploy.report.formats import Format, require_free

    page = output or Path(_PAGE)
    require_free(page, Format.HTML)
    return page


def _write_page(trends: list[Trend], more: int, page: Path) -> None:
    from etdeploy.report.formats import Format, write_report
    from etdeploy.report.html import render
    from etdeploy.report.trends import trends_page

    console.result(str(write_report(render(trends_page(trends, more)), page, Format.HTML)))


def _show(trends: list[Trend], more: int, store: str | None) -> None:
    from etdeploy.report.terminal import render
    from etdeploy.report.trends import list_text, trend_text

    width = console.width()
    if len(trends) == 1:
        console.result(render(trend_text(trends[0], width), width))
        return
    console.result(render([list_text(trends, more)], width))
    command = _history_command(trends[0].series, store)
    console.message(f"\nShow one of them with its changes, for example the first:  {command}")


def _percent(_ctx: click.Context, _param: click.Parameter, value: str) -> float:
    """`5%`, `5 %` or `5`."""
    try:
        number = float(value.removesuffix("%"))
    except ValueError:
        number = -1.0
    if not 0 <= number <= 1000:
        raise click.BadParameter(f"{value!r} is not a percentage from 0 to 1000, like 5%")
    return number


@click.command()
@click.argument("run", default="last")
@click.option(
    "--against",
    metavar="main|last-good|RUN",
    help="Compare with runs whose recipe was committed on the branch main, with runs that no check "
    "found worse, or with one run. By default with all earlier runs that are comparable.",
)
@click.option(
    "--max-slowdown",
    callback=_percent,
    default="5%",
    show_default=True,
    metavar="PERCENT",
    help="How much worse a number may be, including memory and sizes.",
)
@click.option(
    "--last",
    type=click.IntRange(min=5, max=1000),
    default=20,
    show_default=True,
    metavar="N",
    help="The number of earlier runs to compare with.",
)
@options("runs-in", "store", "json", "quiet")
def check(
    run: str,
    against: str | None,
    max_slowdown: float,
    last: int,
    runs_in: Path,
    store: str | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Compare a run with earlier ones, and exit with 1 if a number is worse.

    RUN is `last`, an ID or its end, or a path. It is compared with the latest runs in the history
    that measured the same thing on the same device, and with their spread. The exit code is 0 if
    there is no verdict: too little history, a disturbed run, or one that is not comparable.
    """
    from etdeploy.history.check import LAST_GOOD, MAIN, CheckOptions
    from etdeploy.history.entry import find_recorded_run
    from etdeploy.history.location import require_location

    place = require_location(store)
    found = find_recorded_run(run, runs_in, place)
    by_name = against in (None, MAIN, LAST_GOOD)
    other = None if by_name else find_recorded_run(str(against), runs_in, place).record
    question = CheckOptions(
        against=against if by_name else None,
        other=other,
        max_slowdown_percent=max_slowdown,
        last=last,
    )
    _show_check(_check(found, question, place, quiet=quiet), found, store, as_json)


def _check(run: StoredRun, question: CheckOptions, place: HistoryLocation, *, quiet: bool) -> Check:
    """Compare the run with earlier ones, and store the verdict in the history."""
    from etdeploy.history.check import check as check_run
    from etdeploy.history.check import to_judgement
    from etdeploy.history.record_sink import import_pending
    from etdeploy.history.store.store import open_store

    trouble = None
    try:
        import_pending(place)
        with open_store(place) as store:
            store.add(run.record)
    except EtdeployError as error:
        trouble = error
    with open_store(place, read_only=True) as store:
        if trouble:  # otherwise opening it for reading has failed, too
            console.warn(f"the verdict cannot be stored in the history: {trouble}")
        found = check_run(store, run.record, question)
    judgement = to_judgement(found)
    if judgement is None or question.other is not None:
        return found
    try:
        with open_store(place) as store:
            store.judge(found.run_id, judgement)
    except EtdeployError as error:
        if not quiet:
            console.warn(f"the verdict was not stored in the history: {error}")
    return found


def _show_check(found: Check, run: StoredRun, store: str | None, as_json: bool) -> None:
    """Print a check; raise RegressionError if a number is worse."""
    from etdeploy.bench.records.stored import measure_again
    from etdeploy.history.check import CheckVerdict
    from etdeploy.history.series import series_from
    from etdeploy.report.terminal import render
    from etdeploy.report.trends import check_text

    if as_json:
        console.result_json(found.model_dump(mode="json"))
    else:
        console.result(render(check_text(found, measure_again(run)), console.width()))
    if found.verdict is CheckVerdict.REGRESSED:
        command = _history_command(series_from(run.record), store)
        raise RegressionError(
            found.reason,
            place=found.run_id,
            remedy=f"See when it began, and what changed then: {command}\n"
            f"Measure again: {measure_again(run)}",
        )


def _history_command(series: Series, store: str | None) -> str:
    """Return the command that shows the series."""
    # The URL of a server may have a password in it.
    named = f" --store {quoted(store)}" if store and "://" not in store else ""
    return f"etdeploy history --series {series.short_key}{named}"
