"""etdeploy farm status."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from etdeploy.cli.options import farm_option, json_option, store_option
from etdeploy.core import console
from etdeploy.core.errors import StoreError, UsageError

if TYPE_CHECKING:
    from etdeploy.farm.report.status import Status

_EVERY_S = 2.0


@click.command("status")
@farm_option
@click.option("-w", "--watch", is_flag=True, help="Update the table until Ctrl-C.")
@store_option
@json_option
def command(file: Path | None, watch: bool, store: str | None, as_json: bool) -> None:
    """Show the devices of the latest night, what each is doing, and when it will be done."""
    from etdeploy.cli.options import named_farm
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
        console.watch(_patient(look, live), _EVERY_S)
    else:
        console.result(status_text(look(), console.width()))


def _patient(look: Callable[[], Status], shown: Callable[[Status, str], str]) -> Callable[[], str]:
    """Show the last status, with the reason, while the history cannot be read."""
    last: Status | None = None

    def patient() -> str:
        nonlocal last
        try:
            last = look()
        except StoreError as error:
            if last is None:
                raise
            return shown(last, f"not up to date: {error}")
        return shown(last, "")

    return patient
