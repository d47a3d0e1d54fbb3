"""etdeploy farm plan, run, status and report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from etdeploy.cli.options import FARM_FILE, named_farm, options
from etdeploy.core import console
from etdeploy.core.errors import (
    DeviceError,
    EtdeployError,
    NoVerdictError,
    StoreError,
    UsageError,
)
from etdeploy.core.layout import fit

if TYPE_CHECKING:
    from etdeploy.farm.forecast import Earlier, Forecast
    from etdeploy.farm.model import AvailableDevice
    from etdeploy.farm.report.status import Status
    from etdeploy.farm.spec.model import LoadedFarm

_FILE = click.Path(path_type=Path, dir_okay=False)
_REFRESH_S = 2.0


@click.command()
@click.argument("file", default=str(FARM_FILE), type=click.Path(path_type=Path))
@options("json")
def plan(file: Path, as_json: bool) -> None:
    """Explain what a night would do, and what it cannot; change nothing.

    Shows which recipe is measured on which device, what is exported and built for all of them, how
    long the night takes, and which pairs have no device and why. The exit code is 2 for a farm.yaml
    that cannot be used, and 6 if nothing can be measured.
    """
    from etdeploy.farm.certificates import check_certificate
    from etdeploy.farm.spec.load import load_farm

    loaded = load_farm(file)
    tls = loaded.farm.hosts.tls if loaded.farm.hosts else None
    if tls and (warning := check_certificate(tls)):
        console.warn(warning)
    forecast = _forecast(loaded)
    if as_json:
        console.result_json(forecast.model_dump(mode="json"))
    else:
        from etdeploy.farm.forecast import forecast_text

        console.result(forecast_text(forecast, console.width()))
    # Other hosts may have what is missing here.
    if not forecast.visits and loaded.farm.hosts is None:
        raise DeviceError(
            "nothing can be measured",
            place=str(file),
            remedy="The plan says why. Plug in a device, or change the groups: etdeploy devices",
        )


def _forecast(loaded: LoadedFarm) -> Forecast:
    from contextlib import closing
    from datetime import datetime, timezone

    from etdeploy.cache.workspace import Workspace
    from etdeploy.farm.forecast import forecast_night
    from etdeploy.farm.work.local_devices import LocalDevices

    workspace = Workspace.opened()
    with workspace.in_use():
        here = loaded.farm.hosts is None or loaded.farm.hosts.here
        with closing(LocalDevices(workspace, pools=loaded.farm.pools)) as shelf:
            offers = shelf.look() if here else ()
        earlier = _earlier(loaded, offers)
        return forecast_night(loaded, offers, earlier, datetime.now(timezone.utc), workspace)


def _earlier(loaded: LoadedFarm, offers: Sequence[AvailableDevice]) -> Earlier:
    """Durations of earlier runs; none if the history cannot be read."""
    from etdeploy.farm.forecast import earlier_seconds, visited_seconds
    from etdeploy.history.location import resolve_location
    from etdeploy.history.store.store import open_store

    names = {label: recipe.name for label, recipe in loaded.recipes.items()}
    try:
        place = resolve_location(loaded.farm.store)
        if place is None or (place.file and not place.file.exists()):
            return {}
        with open_store(place, read_only=True) as store:
            runs = earlier_seconds(store, names, offers)
            # Visits of nights are more exact: runs by hand have the time of their passes only.
            return {**runs, **visited_seconds(store, loaded.farm.name)}
    except EtdeployError as error:
        console.warn(f"times are guesses, because the history cannot be read: {error}")
        return {}


@click.command()
@click.argument("file", default=str(FARM_FILE), type=click.Path(path_type=Path))
@click.option(
    "--now",
    "--once",
    "now",
    is_flag=True,
    help="Ignore the window: start at once and continue until everything is measured.",
)
@click.option(
    "--again", is_flag=True, help="Start a new night instead of resuming an unfinished one."
)
@click.option(
    "-o",
    "--output",
    metavar="FOLDER",
    type=click.Path(path_type=Path, file_okay=False),
    help="The folder for run records. By default `results` of farm.yaml.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one line of JSON for each measurement that ends, and a last one with totals.",
)
@options("require-coverage", "quiet")
def run(
    file: Path,
    now: bool,
    again: bool,
    output: Path | None,
    as_json: bool,
    require_coverage: float,
    quiet: bool,
) -> None:
    """Measure every recipe on its devices in the farm's window, and judge the numbers.

    It waits until the window of the farm.yaml FILE opens. Ctrl-C or SIGTERM stops it at once; the
    same command resumes the night. The exit code is 0 if all is well, 1 if a number got worse, else
    that of the worst failure.
    """
    from etdeploy.cli.night import RunOptions, run_farm

    run_farm(RunOptions(file, now, again, output, as_json, quiet, require_coverage))


@click.command()
@options("farm")
@click.option("-w", "--watch", is_flag=True, help="Refresh the table until Ctrl-C.")
@options("store", "json")
def status(file: Path | None, watch: bool, store: str | None, as_json: bool) -> None:
    """Show the devices of the latest night, what each is doing, and when it will be done."""
    from etdeploy.farm.report.source import load_status
    from etdeploy.farm.report.status import status_text

    if watch and as_json:
        raise UsageError("choose one of --watch and --json")
    farm = named_farm(file, store)
    if as_json:
        console.result_json(load_status(farm.place, farm.name).model_dump(mode="json"))
        return

    def look() -> Status:
        return load_status(farm.place, farm.name)

    def live(status: Status, note: str) -> str:
        return status_text(status, console.width(), console.height(), note)

    if watch:
        console.watch(_keep_last(look, live), _REFRESH_S)
    else:
        console.result(status_text(look(), console.width()))


def _keep_last(
    look: Callable[[], Status], shown: Callable[[Status, str], str]
) -> Callable[[], str]:
    """Show the last status, with the reason, while the history cannot be read."""
    last: Status | None = None

    def show_last() -> str:
        nonlocal last
        try:
            last = look()
        except StoreError as error:
            if last is None:
                raise
            return shown(last, f"not up to date: {error}")
        return shown(last, "")

    return show_last


@click.command()
@click.argument("night", default="last")
@options("farm")
@click.option("--html", type=_FILE, metavar="FILE", help="Write a page that works offline.")
@click.option(
    "--markdown",
    type=_FILE,
    metavar="FILE",
    help="Write Markdown, e.g. for a comment on a pull request.",
)
@click.option("--junit", type=_FILE, metavar="FILE", help="Write JUnit XML for CI.")
@click.option(
    "--dashboard",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="Write the dashboard, with a page for each of the latest nights.",
)
@options("require-coverage", "store", "json")
def report(
    night: str,
    file: Path | None,
    html: Path | None,
    markdown: Path | None,
    junit: Path | None,
    dashboard: Path | None,
    require_coverage: float,
    store: str | None,
    as_json: bool,
) -> None:
    """Show a night: verdicts first, then failures, missed visits and devices.

    NIGHT is `last`, an ID or its end. Without a FILE, the report is printed. The exit code is 0
    even for a bad night, except that too little was judged for --require-coverage: only `etdeploy
    farm run` reports the night's.
    """
    from etdeploy.farm.report.end import summarize
    from etdeploy.farm.report.forms import RequestedReports, night_text, require_free, write
    from etdeploy.farm.report.pages import write_dashboard
    from etdeploy.farm.report.source import find_night, load_dashboard, load_report, load_snapshot

    wanted = RequestedReports(html, markdown, junit)
    require_free(wanted)
    farm = named_farm(file, store)
    found = find_night(farm.place, night, farm.name)
    report = load_report(
        farm.place, load_snapshot(farm.place, found), farm.settings,
        required_percent=require_coverage,
    )  # fmt: skip
    paths = write(report, wanted)
    if dashboard:
        board = load_dashboard(farm.place, farm.settings, farm.name)
        paths.append(write_dashboard(board, dashboard))
    if as_json:
        console.result_json(summarize(report, paths))
    elif paths:
        console.result("\n".join(map(str, paths)))
    else:
        width = console.width()
        console.result(fit(night_text(report, width), width))
    if report.uncovered:
        raise NoVerdictError(report.uncovered, place=report.night.id)
