"""Who has a device, and which devices are set aside."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Iterable
from datetime import datetime

from etdeploy.core.commands import quoted
from etdeploy.core.console import count
from etdeploy.core.errors import DeviceError
from etdeploy.history.location import HistoryLocation, store_option
from etdeploy.history.nights import Quarantined as Quarantined
from etdeploy.history.nights import Reservation as Reservation
from etdeploy.history.nights import Shelved as Shelved


def covering(
    reservations: Iterable[Reservation], identity: str, host: str, device: str = ""
) -> Reservation | None:
    """The reservation of a device.

    Args:
        reservations: Those that have not ended.
        identity: Of the device.
        host: The one that it is plugged into, or that it is.
        device: Its name, which tells a board after it was started again.
    """
    return next((kept for kept in reservations if kept.is_of(identity, host, device)), None)


def refusal(kept: Reservation, device: str, me: str) -> DeviceError | None:
    """Why a person may not use a device now; None for the owner of its reservation.

    Args:
        kept: The reservation.
        device: What to call the device.
        me: USER@HOST of the one who asks.
    """
    if is_same(kept.owner, me):
        return None
    return DeviceError(
        f"{kept.owner} has reserved this device until {local(kept.until)}{_noted(kept)}",
        place=device,
        remedy="Wait until then, or use another device: etdeploy devices\n"
        f"If {kept.owner} does not need it: etdeploy farm release {quoted(kept.device)} --force",
    )


def local(time: datetime) -> str:
    """A time as a person here reads it."""
    return f"{time.astimezone():%Y-%m-%d %H:%M %Z}".strip()


def duration(seconds: float) -> str:
    """A length of time in words, to the minute."""
    minutes = max(1, round(seconds / 60))
    days, rest = divmod(minutes, 24 * 60)
    parts = ((days, "day"), (rest // 60, "hour"), (rest % 60, "minute"))
    return " ".join(count(number, noun) for number, noun in parts if number)


def reserve(
    place: HistoryLocation, device: Shelved, owner: str, for_s: float, note: str = ""
) -> tuple[Reservation, str | None]:
    """Reserves a device; the owner's earlier reservation of it is replaced.

    Args:
        place: The history.
        device: The device.
        owner: USER@HOST, or USER.
        for_s: How long, in seconds, by the database's clock.
        note: What for.

    Returns:
        The reservation, and the farm whose night measures the device now: it ends that attempt
        first.

    Raises:
        DeviceError: It is somebody else's.
        StoreError: The history cannot be used.
    """
    from etdeploy.history.store import device_pool
    from etdeploy.history.store.store import open_store

    with open_store(place) as store, store.transaction(writes=True) as connection:
        device_pool.alone(connection)
        kept = covering(
            device_pool.active_reservations(connection), device.identity, device.host, device.device
        )
        if kept and kept.owner != owner and (why := refusal(kept, device.device, owner)):
            raise why
        made = device_pool.reserve(connection, device, owner, for_s, note)
        return made, device_pool.busy_in(connection, device)


def release(
    place: HistoryLocation, device: Shelved, me: str, *, force: bool = False
) -> Reservation | None:
    """Ends a reservation, and returns what it was; None if there was none.

    Args:
        place: The history.
        device: The device.
        me: USER@HOST of the one who asks.
        force: Whether also somebody else's.

    Raises:
        DeviceError: It is somebody else's.
        StoreError: The history cannot be used.
    """
    from etdeploy.history.store import device_pool
    from etdeploy.history.store.store import open_store

    with open_store(place) as store, store.transaction(writes=True) as connection:
        device_pool.alone(connection)
        kept = covering(
            device_pool.active_reservations(connection), device.identity, device.host, device.device
        )
        if kept is None:
            return None
        if not force and not is_same(kept.owner, me):
            raise DeviceError(
                f"{kept.owner} has reserved this device until {local(kept.until)}{_noted(kept)}",
                place=device.device,
                remedy="Ask them, or end their reservation: "
                f"etdeploy farm release {quoted(device.device)} --force{store_option(place)}",
            )
        device_pool.release(connection, device)
        return kept


def active(place: HistoryLocation) -> tuple[Reservation, ...]:
    """All reservations that have not ended, by the database's clock; the first to end comes first.

    Raises:
        StoreError: The history cannot be read.
    """
    from etdeploy.history.store.sqlite import reservations_at

    return tuple(sorted(reservations_at(place), key=lambda kept: (kept.until, kept.device)))


def _noted(kept: Reservation) -> str:
    return f": {kept.note}" if kept.note else ""


def this_host() -> str:
    """What this machine is called, by reservations and by a farm."""
    return socket.gethostname() or "localhost"


def myself() -> str:
    """USER@HOST of this process."""
    return f"{_user()}@{this_host()}"


def is_same(owner: str, me: str) -> bool:
    """Whether a reservation's owner is the one who asks.

    Args:
        owner: USER@HOST, or USER for one on every host.
        me: USER@HOST.
    """
    return owner in (me, me.partition("@")[0])


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user need not have a name
        return f"uid-{os.getuid()}"


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


def end_quarantine(place: HistoryLocation, device: Shelved) -> Quarantined | None:
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


def quarantined_devices(place: HistoryLocation) -> tuple[Quarantined, ...]:
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
