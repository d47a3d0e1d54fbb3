"""etdeploy farm release."""

from __future__ import annotations

from pathlib import Path

import click

from etdeploy.cli.options import complete_device, farm_option, json_option, store_option
from etdeploy.core import console


@click.command()
@click.argument("device", shell_complete=complete_device)
@click.option("--force", is_flag=True, help="Also somebody else's reservation.")
@farm_option
@store_option
@json_option
def command(device: str, force: bool, file: Path | None, store: str | None, as_json: bool) -> None:
    """Give a reserved device back before its time is over."""
    from etdeploy.cli.options import named_farm
    from etdeploy.device_pool.lookup import find_kept
    from etdeploy.device_pool.reservations import is_same, local, myself, release

    place = named_farm(file, store).place
    found = find_kept(device, place)
    me = myself()
    ended = release(place, found, me, force=force)
    if as_json:
        console.result_json({"released": ended.model_dump(mode="json") if ended else None})
    elif ended is None:
        console.result(f"{found.device} was not reserved")
    elif is_same(ended.owner, me):
        console.result(f"{ended.device} is free again")
    else:
        console.result(
            f"{ended.device} is free again; it was reserved by {ended.owner} until "
            f"{local(ended.until)}{f': {ended.note}' if ended.note else ''}"
        )
