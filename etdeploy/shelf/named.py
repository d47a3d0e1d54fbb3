"""Devices by name: those that are plugged in, and those that the history knows."""

from __future__ import annotations

from collections.abc import Iterable

from etdeploy.core.errors import DeviceError, UsageError
from etdeploy.history.place import Place
from etdeploy.history.shelved import Shelved, host_of
from etdeploy.shelf.owner import this_host

_MOST_NAMED = 12


def find_device(text: str, place: Place) -> Shelved:
    """The device that somebody means, to be reserved or set aside.

    Args:
        text: As `--device` takes it for one that is plugged in; else its name, identity or serial
            number, if the history knows it. NAME@HOST is another host itself.
        place: The history.

    Raises:
        UsageError: Several known devices fit.
        EtdeployError: It is neither plugged in nor known.
        StoreError: The history cannot be read.
    """
    try:
        return _plugged_in(text)
    except (DeviceError, UsageError) as error:
        known = known_devices(place)
        if found := chosen(known, text, this_host()):
            return found
        names = ", ".join(sorted({each.device for each in known})[:_MOST_NAMED])
        more = f"Devices that the history knows: {names}" if names else ""
        error.remedy = "\n".join(filter(None, (error.remedy, more)))
        raise


def find_kept(text: str, place: Place) -> Shelved:
    """The same for one that is to be given back, and that may be gone or off.

    Raises:
        EtdeployError: As `find_device`.
    """
    return chosen(known_devices(place), text, this_host()) or find_device(text, place)


def chosen(known: Iterable[Shelved], text: str, here: str) -> Shelved | None:
    """The known device with this name, identity or serial number.

    Args:
        known: All of them.
        text: What somebody calls it.
        here: The name of this host.

    Raises:
        UsageError: Several fit.
    """
    found = {(each.identity, each.host): each for each in known if text in _names(each, here)}
    if len(found) > 1:
        raise UsageError(
            f"{text!r} may be one of {len(found)} devices",
            remedy="Name it by its identity: " + ", ".join(sorted(name for name, _ in found)),
        )
    return next(iter(found.values()), None)


def known_devices(place: Place) -> list[Shelved]:
    """Devices that were measured, reserved or set aside.

    Raises:
        StoreError: The history cannot be read.
    """
    from etdeploy.history.store import shelf
    from etdeploy.history.store.store import open_store

    if place.file and not place.file.exists():
        return []
    with open_store(place, read_only=True) as store, store.transaction() as connection:
        return shelf.known_devices(connection)


def _names(device: Shelved, here: str) -> tuple[str, ...]:
    if device.host not in ("", here):
        return (f"{device.device}@{device.host}",)
    serial = device.identity.partition("-")[2]
    return (device.device, device.identity, *([serial] if serial else []))


def _plugged_in(text: str) -> Shelved:
    from etdeploy.devices.base import lock_name
    from etdeploy.devices.registry import open_device

    opened = open_device(text)
    try:
        identity = lock_name(opened)
        return Shelved(identity=identity, device=opened.name, host=host_of(identity, this_host()))
    finally:
        opened.close()
