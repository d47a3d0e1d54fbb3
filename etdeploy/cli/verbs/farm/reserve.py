"""etdeploy farm reserve."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click

from etdeploy.cli.options import complete_device, farm_option, json_option, store_option
from etdeploy.core import console
from etdeploy.core.commands import quoted

_LENGTH = re.compile(r"(\d+)\s*(m|min|h|d|w)")
_SECONDS = {"m": 60, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_LONGEST_S = 366 * 86400


def _length(_ctx: click.Context, _param: click.Parameter, value: str) -> float:
    """Seconds of `30m`, `2h`, `3d`."""
    found = _LENGTH.fullmatch(value.strip())
    seconds = int(found[1]) * _SECONDS[found[2]] if found else 0
    if not 0 < seconds <= _LONGEST_S:
        raise click.BadParameter("name a time of up to a year, as 30m, 2h, 3d or 1w")
    return float(seconds)


@click.command()
@click.argument("device", required=False, shell_complete=complete_device)
@click.option(
    "--for",
    "for_s",
    default="2h",
    show_default=True,
    callback=_length,
    metavar="TIME",
    help="For how long: 30m, 2h, 3d, 1w.",
)
@click.option("--note", default="", metavar="TEXT", help="What for; others see it.")
@click.option(
    "--owner",
    metavar="USER[@HOST]",
    help="For whom; USER alone is that user on every host. By default you, on this host.",
)
@farm_option
@store_option
@json_option
def command(
    device: str | None,
    for_s: float,
    note: str,
    owner: str | None,
    file: Path | None,
    store: str | None,
    as_json: bool,
) -> None:
    """Keep nights and other people away from a device for a while.

    DEVICE is as --device takes it, or the serial number or identity of one that the history knows.
    Without it, reservations are listed. Your own reservation of a device is replaced.
    """
    from etdeploy.cli.options import named_farm
    from etdeploy.device_pool.lookup import find_device
    from etdeploy.device_pool.reservations import active, duration, local, myself, reserve
    from etdeploy.history.location import option_for

    place = named_farm(file, store).place
    if device is None:
        _list(active(place), as_json)
        return
    found = find_device(device, place)
    made, farm = reserve(place, found, owner or myself(), for_s, note)
    if as_json:
        console.result_json({**made.model_dump(mode="json"), "measured_now_by": farm})
        return
    console.result(
        f"{made.device} is reserved for {made.owner} for {duration(for_s)}, until "
        f"{local(made.until)}"
    )
    if farm:
        console.message(
            f"A night of {farm} is measuring on it now; it is yours when that attempt ends."
        )
    back = f"etdeploy farm release {quoted(device)}{option_for(place)}"
    console.message(f"Give it back with:  {back}")


def _list(found: Any, as_json: bool) -> None:
    from etdeploy.device_pool.reservations import local

    if as_json:
        console.result_json([kept.model_dump(mode="json") for kept in found])
        return
    if not found:
        console.result("no device is reserved")
        return
    rows = [(kept.device, kept.owner, local(kept.until), kept.note or None) for kept in found]
    console.result(console.table(("device", "owner", "until", "note"), rows, width=console.width()))
