"""etdeploy farm reserve, release and quarantine."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from etdeploy.cli.options import complete_device, named_farm, options
from etdeploy.core import console
from etdeploy.core.commands import quoted
from etdeploy.core.errors import UsageError

if TYPE_CHECKING:
    from etdeploy.history.location import HistoryLocation
    from etdeploy.history.nights import Quarantined

_DURATION = re.compile(r"(\d+)\s*(m|min|h|d|w)")
_SECONDS = {"m": 60, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_LONGEST_S = 366 * 86400
_BY_HAND = "no reason given"


def _duration(_ctx: click.Context, _param: click.Parameter, value: str) -> float:
    """Seconds of `30m`, `2h`, `3d`."""
    found = _DURATION.fullmatch(value.strip())
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
    callback=_duration,
    metavar="TIME",
    help="How long, e.g. 30m, 2h, 3d or 1w.",
)
@click.option("--note", default="", metavar="TEXT", help="The reason; others see it.")
@click.option(
    "--owner",
    metavar="USER[@HOST]",
    help="For whom; USER without HOST is that user on every host. By default you, on this host.",
)
@options("farm", "store", "json")
def reserve(
    device: str | None,
    for_s: float,
    note: str,
    owner: str | None,
    file: Path | None,
    store: str | None,
    as_json: bool,
) -> None:
    """Keep nights and other people away from a device for a while.

    DEVICE is a value of --device, or the serial number or identity of a device in the history.
    Without it, reservations are listed. A new reservation replaces your own earlier one.
    """
    from etdeploy.device_pool import (
        active_reservations,
        current_user,
        find_device,
        local_time,
        reserve,
    )
    from etdeploy.history.location import store_option

    place = named_farm(file, store).place
    if device is None:
        _list_reserved(active_reservations(place), as_json)
        return
    found = find_device(device, place)
    made, farm = reserve(place, found, owner or current_user(), for_s, note)
    if as_json:
        console.result_json({**made.model_dump(mode="json"), "measured_now_by": farm})
        return
    console.result(
        f"{made.device} is reserved for {made.owner} for {_duration_text(for_s)}, until "
        f"{local_time(made.until)}"
    )
    if farm:
        console.message(
            f"A night of {farm} is measuring on it now; it is yours when that attempt ends."
        )
    back = f"etdeploy farm release {quoted(device)}{store_option(place)}"
    console.message(f"Give it back with:  {back}")


def _duration_text(seconds: float) -> str:
    """A length of time in words, to the minute."""
    minutes = max(1, round(seconds / 60))
    days, rest = divmod(minutes, 24 * 60)
    parts = ((days, "day"), (rest // 60, "hour"), (rest % 60, "minute"))
    return " ".join(console.count(number, noun) for number, noun in parts if number)


def _list_reserved(found: Any, as_json: bool) -> None:
    from etdeploy.device_pool import local_time

    if as_json:
        console.result_json([kept.model_dump(mode="json") for kept in found])
        return
    if not found:
        console.result("no device is reserved")
        return
    rows = [(kept.device, kept.owner, local_time(kept.until), kept.note or None) for kept in found]
    console.result(console.table(("device", "owner", "until", "note"), rows, width=console.width()))


@click.command()
@click.argument("device", shell_complete=complete_device)
@click.option("--force", is_flag=True, help="Even if somebody else reserved it.")
@options("farm", "store", "json")
def release(device: str, force: bool, file: Path | None, store: str | None, as_json: bool) -> None:
    """Give a reserved device back early."""
    from etdeploy.device_pool import current_user, find_known_device, is_owner, local_time, release

    place = named_farm(file, store).place
    found = find_known_device(device, place)
    me = current_user()
    ended = release(place, found, me, force=force)
    if as_json:
        console.result_json({"released": ended.model_dump(mode="json") if ended else None})
    elif ended is None:
        console.result(f"{found.device} was not reserved")
    elif is_owner(me, ended.owner):
        console.result(f"{ended.device} is free again")
    else:
        console.result(
            f"{ended.device} is free again; it was reserved by {ended.owner} until "
            f"{local_time(ended.until)}{f': {ended.note}' if ended.note else ''}"
        )


@click.command()
@click.argument("device", required=False, shell_complete=complete_device)
@click.option("--reason", metavar="TEXT", help=f"The reason. By default {_BY_HAND!r}.")
@click.option(
    "--release",
    "released",
    metavar="DEVICE",
    shell_complete=complete_device,
    help="Let nights use this device again.",
)
@options("farm", "store", "json")
def quarantine(
    device: str | None,
    reason: str | None,
    released: str | None,
    file: Path | None,
    store: str | None,
    as_json: bool,
) -> None:
    """Quarantine a device, so that no night uses it; without DEVICE, list quarantined devices.

    DEVICE is a value of --device, or the serial number or identity of a device in the history.
    Runs by hand can still use it.
    """
    from etdeploy.device_pool import quarantined_devices

    if released is not None and (device is not None or reason is not None):
        raise UsageError(
            "a device is either quarantined or released",
            remedy=f"etdeploy farm quarantine --release {released}",
        )
    if reason is not None and device is None:
        raise UsageError("--reason is for a device: etdeploy farm quarantine DEVICE --reason TEXT")
    place = named_farm(file, store).place
    if released is not None:
        _release(released, place, as_json)
    elif device is not None:
        _quarantine_device(device, reason or _BY_HAND, place, as_json)
    else:
        _list_quarantined(quarantined_devices(place), as_json)


def _quarantine_device(device: str, reason: str, place: HistoryLocation, as_json: bool) -> None:
    from etdeploy.device_pool import current_user, find_device, quarantine_device
    from etdeploy.history.location import store_option

    made = quarantine_device(place, find_device(device, place), reason, current_user())
    if as_json:
        console.result_json(made.model_dump(mode="json"))
        return
    console.result(f"{made.device} is quarantined: {made.reason}")
    again = f"etdeploy farm quarantine --release {quoted(device)}{store_option(place)}"
    console.message(f"Let nights use it again with:  {again}")


def _release(device: str, place: HistoryLocation, as_json: bool) -> None:
    from etdeploy.device_pool import end_quarantine, find_known_device, local_time

    found = find_known_device(device, place)
    ended = end_quarantine(place, found)
    if as_json:
        console.result_json({"released": ended.model_dump(mode="json") if ended else None})
    elif ended is None:
        console.result(f"{found.device} was not quarantined")
    else:
        console.result(
            f"nights may use {ended.device} again; it was quarantined by {ended.by} on "
            f"{local_time(ended.since)}: {ended.reason}"
        )


def _list_quarantined(found: Sequence[Quarantined], as_json: bool) -> None:
    from etdeploy.device_pool import local_time

    if as_json:
        console.result_json([kept.model_dump(mode="json") for kept in found])
        return
    if not found:
        console.result("no device is quarantined")
        return
    rows = [(kept.device, local_time(kept.since), kept.by, kept.reason) for kept in found]
    console.result(console.table(("device", "since", "by", "reason"), rows, width=console.width()))
