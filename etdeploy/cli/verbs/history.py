"""etdeploy history, with export, import and prune."""

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
from etdeploy.core.errors import EtdeployError, UsageError

if TYPE_CHECKING:
    from etdeploy.history.location import HistoryLocation
    from etdeploy.history.nights import DeviceHealth
    from etdeploy.history.series import Series
    from etdeploy.history.store.retention import Pruned
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
        without = sum(each.runs for each in opened.series(wanted)) - written if opened else 0
    console.message(f"{console.count(written, 'record')} written to {file}")
    if without > 0:
        runs = console.count(without, "run")
        console.warn(f"{runs} have no record any more (`etdeploy history prune`), only numbers")


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
    health = _device_health(place, store, wanted)
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
        yield DEVICES, render(devices_page(health, f"by week{since}"), HISTORY_MARK)
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


@history.command("prune")
@click.option(
    "--keep",
    callback=_since,
    metavar="DATE|400d",
    help="Delete runs and nights that are older, except those that alerts and baselines refer to.",
)
@click.option(
    "--keep-records",
    callback=_since,
    metavar="DATE|90d",
    help="Delete the complete records of older runs; their numbers stay in trends and baselines.",
)
@click.option("--dry-run", is_flag=True, help="Only count what would be deleted.")
@options("json")
@click.pass_obj
def prune(
    obj: tuple[HistoryLocation, Filter],
    keep: str | None,
    keep_records: str | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Delete old runs, or only their complete records.

    Options before `prune` select the runs. What stays in any case: the first bad and the last good
    run of every alert with their records; the latest 300 runs of each series that was measured
    within the time, by which the next night is judged; and the latest record of each series.
    """
    from etdeploy.history.store.retention import Pruned, compact
    from etdeploy.history.store.retention import prune as prune_store
    from etdeploy.history.store.store import open_store

    place, wanted = obj
    _require_past(keep, keep_records)
    done, trouble, freed = Pruned(), "", 0
    if place.file is None or place.file.exists():
        before = place.file.stat().st_size if place.file else 0
        with (
            open_store(place, read_only=dry_run) as store,
            store.transaction(writes=not dry_run) as connection,
        ):
            done = prune_store(
                connection, wanted, before=keep, records_before=keep_records, dry_run=dry_run
            )
        if not dry_run and (done.runs or done.records or done.nights):
            trouble = compact(place)
        freed = max(0, before - place.file.stat().st_size) if place.file else 0
    if as_json:
        console.result_json({**done.model_dump(), "freed_bytes": freed, "dry_run": dry_run})
    else:
        console.result(_pruned_text(done, dry_run))
        if freed:
            console.message(f"{place.shown} is {console.size(freed)} smaller")
    if trouble:
        console.warn(
            f"the file could not be made smaller, and new runs will use the free space: {trouble}"
        )


def _require_past(keep: str | None, keep_records: str | None) -> None:
    if keep is None and keep_records is None:
        raise UsageError(
            "nothing says what is old",
            remedy="For example: etdeploy history prune --keep 400d --keep-records 90d --dry-run",
        )
    latest = (datetime.now(timezone.utc) - timedelta(days=1)).isoformat(timespec="seconds")
    for option, time in (("--keep", keep), ("--keep-records", keep_records)):
        if time is not None and time > latest:
            raise UsageError(
                f"{option} has to be a day ago at least, and this would delete the runs of today",
                remedy=f"For example: {option} 90d",
            )
    if keep is not None and keep_records is not None and keep_records < keep:
        raise UsageError(
            "--keep-records is longer than --keep, and a record does not stay without its run",
            remedy="Make --keep the longer time, or leave out --keep-records.",
        )


def _pruned_text(done: Pruned, dry_run: bool) -> str:
    parts = [
        console.count(done.runs, "run"),
        f"{console.count(done.records, 'record')} of runs whose numbers stay",
        console.count(done.nights, "night"),
    ]
    text = f"{'would delete' if dry_run else 'deleted'}: {', '.join(parts)}"
    if done.referenced:
        runs = console.count(done.referenced, "older run")
        text += f"\n{runs} {'stays' if done.referenced == 1 else 'stay'}, to which alerts or "
        text += "baselines refer"
    return text


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
    command = history_command(trends[0].series, store)
    console.message(f"\nShow one of them with its changes, for example the first:  {command}")


def history_command(series: Series, store: str | None) -> str:
    """Return the command that shows the series."""
    # The URL of a server may have a password in it.
    named = f" --store {quoted(store)}" if store and "://" not in store else ""
    return f"etdeploy history --series {series.short_key}{named}"
