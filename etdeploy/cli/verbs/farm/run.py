"""etdeploy farm run."""

from __future__ import annotations

from pathlib import Path

import click

from etdeploy.cli.options import quiet_option


@click.command()
@click.argument("file", default="farm.yaml", type=click.Path(path_type=Path))
@click.option(
    "--now",
    "--once",
    "now",
    is_flag=True,
    help="Begin at once and go on until everything is measured, whatever the window says.",
)
@click.option(
    "--again", is_flag=True, help="Begin a new night, even if another one could be gone on with."
)
@click.option(
    "-o",
    "--output",
    metavar="FOLDER",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where run records go, by default `results` of farm.yaml.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print a line of JSON for each visit that ends, and a last one with totals.",
)
@quiet_option
def command(
    file: Path, now: bool, again: bool, output: Path | None, as_json: bool, quiet: bool
) -> None:
    """Measure every recipe on its devices in the farm's window, and judge the numbers.

    FILE is a farm.yaml; it waits for its window to open. Ctrl-C or SIGTERM ends what is under way
    at once: the same command goes on with the night. The exit code is 0 if all is well, 1 if a
    number has become worse, else that of the worst failure.
    """
    from etdeploy.cli.night import RunOptions, run_whole

    run_whole(RunOptions(file, now, again, output, as_json, quiet))
