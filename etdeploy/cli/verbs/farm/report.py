"""etdeploy farm report."""

from __future__ import annotations

from pathlib import Path

import click

from etdeploy.cli.options import farm_option, json_option, store_option
from etdeploy.core import console
from etdeploy.core.layout import fit

_FILE = click.Path(path_type=Path, dir_okay=False)


@click.command("report")
@click.argument("night", default="last")
@farm_option
@click.option("--html", type=_FILE, metavar="FILE", help="Write a page; it works offline.")
@click.option(
    "--markdown", type=_FILE, metavar="FILE", help="Write Markdown for a pull request's comment."
)
@click.option("--junit", type=_FILE, metavar="FILE", help="Write JUnit XML for CI.")
@click.option(
    "--dashboard",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="Write the dashboard's pages, those of the latest nights among them.",
)
@store_option
@json_option
def command(
    night: str,
    file: Path | None,
    html: Path | None,
    markdown: Path | None,
    junit: Path | None,
    dashboard: Path | None,
    store: str | None,
    as_json: bool,
) -> None:
    """Show a night: verdicts first, then failures, missed visits and devices.

    NIGHT is `last`, an id or its end. Without a file, the report is printed. The exit code is 0
    also for a bad night: `etdeploy farm run` ends with that of the night.
    """
    from etdeploy.cli.options import named_farm
    from etdeploy.farm.report.end import summarize
    from etdeploy.farm.report.forms import RequestedReports, night_text, require_free, write
    from etdeploy.farm.report.pages import write_dashboard
    from etdeploy.farm.report.source import find_night, load_dashboard, load_report, load_snapshot

    wanted = RequestedReports(html, markdown, junit)
    require_free(wanted)
    farm = named_farm(file, store)
    found = find_night(farm.place, night, farm.name)
    report = load_report(farm.place, load_snapshot(farm.place, found), farm.settings)
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
