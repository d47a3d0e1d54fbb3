"""etdeploy farm status."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from etdeploy.cli.options import json_option, store_option
from etdeploy.core import console
from etdeploy.core.errors import StoreError, UsageError

if TYPE_CHECKING:
    from etdeploy.cli.farm_named import NamedFarm

_EVERY_S = 2.0
_ADDRESS = "127.0.0.1:8033"


@click.command("status")
@click.option(
    "-f",
    "--farm",
    "file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The farm.yaml; by default that of this folder, and without one any farm's latest night.",
)
@click.option("-w", "--watch", is_flag=True, help="Show it again whenever it changes.")
@click.option(
    "--serve",
    is_flag=False,
    flag_value=_ADDRESS,
    metavar="[ADDRESS:PORT]",
    help=f"Serve the dashboard; by default on {_ADDRESS}, for this machine alone.",
)
@store_option
@json_option
def command(
    file: Path | None, watch: bool, serve: str | None, store: str | None, as_json: bool
) -> None:
    """Show the devices of the latest night, what each is doing, and when it will be done."""
    from etdeploy.cli.farm_named import named_farm
    from etdeploy.core.text.layout import fit
    from etdeploy.farm.report.live.status import status_text
    from etdeploy.farm.report.source import status_now

    if sum((watch, as_json, serve is not None)) > 1:
        raise UsageError("choose one of --watch, --serve and --json")
    farm = named_farm(file, store)
    if serve is not None:
        _serve(serve, farm)
        return
    if as_json:
        console.result_json(status_now(farm.place, farm.name).model_dump(mode="json"))
        return

    def text() -> str:
        width = console.width()
        return fit(status_text(status_now(farm.place, farm.name), width), width)

    if watch:
        console.watch(_patient(text), _EVERY_S)
    else:
        console.result(text())


def _patient(text: Callable[[], str]) -> Callable[[], str]:
    """The same text again, with the reason, while the history is away: but for the first."""
    last = ""

    def patient() -> str:
        nonlocal last
        try:
            last = text()
        except StoreError as error:
            if not last:
                raise
            return f"{last}\n\nthis is old: {error}"
        return last

    return patient


def _serve(address: str, farm: NamedFarm) -> None:
    from etdeploy.farm.report.live.serve import address_of, is_loopback, serving
    from etdeploy.farm.report.source import Boards

    where = address_of(address)
    if not is_loopback(where[0]):
        console.warn(
            f"whoever reaches {where[0]} can read the dashboard: it has no password and no TLS"
        )
    boards = Boards(farm.place, farm.settings, farm.name)
    with serving(where, lambda: boards.now(hurry=True)) as url:
        console.result(url)
        console.message("serving the dashboard until Ctrl-C")
        console.until_stopped()
