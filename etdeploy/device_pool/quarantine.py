"""Quarantine: no night uses a device that was set aside, with the reason."""

from __future__ import annotations

from collections.abc import Iterable

from etdeploy.history.nights import Quarantined as Quarantined
from etdeploy.history.nights import Shelved as Shelved
from etdeploy.history.place import HistoryLocation


def quarantined(
    kept: Iterable[Quarantined], identity: str, host: str, device: str = ""
) -> Quarantined | None:
    """Why a device is set aside; None if it is not. The arguments are those of `covering`."""
    return next((each for each in kept if each.is_of(identity, host, device)), None)


def set_aside(place: HistoryLocation, device: Shelved, reason: str, by: str) -> Quarantined:
    """Sets a device aside; one that is already gets the new reason.

    Args:
        place: The history.
        device: The device.
        reason: Why, in a few words.
        by: Who does it: USER@HOST, or a night.

    Raises:
        StoreError: The history cannot be used.
    """
    from etdeploy.history.store import device_pool
    from etdeploy.history.store.store import open_store

    with open_store(place) as store, store.transaction(writes=True) as connection:
        device_pool.alone(connection)
        return device_pool.set_aside(connection, device, reason, by)


def release(place: HistoryLocation, device: Shelved) -> Quarantined | None:
    """Lets nights use a device again, and returns why it was set aside; None if it was not.

    Raises:
        StoreError: The history cannot be used.
    """
    from etdeploy.history.store import device_pool
    from etdeploy.history.store.store import open_store

    with open_store(place) as store, store.transaction(writes=True) as connection:
        device_pool.alone(connection)
        kept = quarantined(
            device_pool.all_quarantined(connection), device.identity, device.host, device.device
        )
        if kept:
            device_pool.take_back(connection, device)
        return kept


def all_of(place: HistoryLocation) -> tuple[Quarantined, ...]:
    """Every device that is set aside, the earliest first.

    Raises:
        StoreError: The history cannot be read.
    """
    from etdeploy.history.store import device_pool
    from etdeploy.history.store.store import open_store

    if place.file and not place.file.exists():
        return ()
    with open_store(place, read_only=True) as store, store.transaction() as connection:
        return tuple(device_pool.all_quarantined(connection))
