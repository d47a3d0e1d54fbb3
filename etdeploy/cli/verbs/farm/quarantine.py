"""etdeploy farm quarantine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from etdeploy.cli.options import complete_device, farm_option, json_option, store_option
from etdeploy.core import console
from etdeploy.core.commands import quoted
from etdeploy.core.errors import UsageError

if TYPE_CHECKING:
    from etdeploy.device_pool.reservations import Quarantined
    from etdeploy.history.location import HistoryLocation

_BY_HAND = "set aside by hand"


@click.command()
@click.argument("device", required=False, shell_complete=complete_device)
@click.option("--reason", metavar="TEXT", help=f"Why; by default: {_BY_HAND}.")
@click.option(
    "--release",
    "released",
    metavar="DEVICE",
    shell_complete=complete_device,
    help="Let nights use this device again.",
)
@farm_option
@store_option
@json_option
def command(
    device: str | None,
    reason: str | None,
    released: str | None,
    file: Path | None,
    store: str | None,
    as_json: bool,
) -> None:
    """Set a device aside, so that no night uses it; without DEVICE, list those that are.

    DEVICE is as --device takes it, or the serial number or identity of one that the history knows.
    A person's own runs are not kept from it.
    """
    from etdeploy.cli.options import named_farm
    from etdeploy.device_pool.reservations import quarantined_devices

    if released is not None and (device is not None or reason is not None):
        raise UsageError(
            "a device is either set aside or released",
            remedy=f"etdeploy farm quarantine --release {released}",
        )
    if reason is not None and device is None:
        raise UsageError("--reason is for a device: etdeploy farm quarantine DEVICE --reason TEXT")
    place = named_farm(file, store).place
    if released is not None:
        _release(released, place, as_json)
    elif device is not None:
        _set_aside(device, reason or _BY_HAND, place, as_json)
    else:
        _list(quarantined_devices(place), as_json)


def _set_aside(device: str, reason: str, place: HistoryLocation, as_json: bool) -> None:
    from etdeploy.device_pool.lookup import find_device
    from etdeploy.device_pool.reservations import myself, set_aside
    from etdeploy.history.location import option_for

    made = set_aside(place, find_device(device, place), reason, myself())
    if as_json:
        console.result_json(made.model_dump(mode="json"))
        return
    console.result(f"{made.device} is set aside: {made.reason}")
    again = f"etdeploy farm quarantine --release {quoted(device)}{option_for(place)}"
    console.message(f"Let nights use it again with:  {again}")


def _release(device: str, place: HistoryLocation, as_json: bool) -> None:
    from etdeploy.device_pool.lookup import find_kept
    from etdeploy.device_pool.reservations import end_quarantine, local

    found = find_kept(device, place)
    ended = end_quarantine(place, found)
    if as_json:
        console.result_json({"released": ended.model_dump(mode="json") if ended else None})
    elif ended is None:
        console.result(f"{found.device} was not set aside")
    else:
        console.result(
            f"nights may use {ended.device} again; it was set aside by {ended.by} on "
            f"{local(ended.since)}: {ended.reason}"
        )


def _list(found: Sequence[Quarantined], as_json: bool) -> None:
    from etdeploy.device_pool.reservations import local

    if as_json:
        console.result_json([kept.model_dump(mode="json") for kept in found])
        return
    if not found:
        console.result("no device is set aside")
        return
    rows = [(kept.device, local(kept.since), kept.by, kept.reason) for kept in found]
    console.result(console.table(("device", "since", "by", "reason"), rows, width=console.width()))
