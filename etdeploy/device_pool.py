"""Reservations and quarantine of devices: who has a device, and which ones nights leave out."""

from __future__ import annotations

import getpass
import os
import socket
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from etdeploy.core import console
from etdeploy.core.commands import quoted
from etdeploy.core.errors import DeviceError, EtdeployError, UsageError
from etdeploy.core.files.locks import exclusive
from etdeploy.core.values import Progress
from etdeploy.history.location import HistoryLocation, resolve_location, store_option
from etdeploy.history.nights import KnownDevice, Quarantined, Reservation, host_of

if TYPE_CHECKING:
    from etdeploy.history.store.store import Connection

S = TypeVar("S", bound=KnownDevice)
_MOST_NAMED = 12


def this_host() -> str:
    """The name of this machine, in reservations and in a farm."""
    return socket.gethostname() or "localhost"


def current_user() -> str:
    """USER@HOST of this process."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user need not have a name
        user = f"uid-{os.getuid()}"
    return f"{user}@{this_host()}"


def is_owner(user: str, owner: str) -> bool:
    """Whether USER@HOST is the owner of a reservation: USER@HOST, or USER for any host."""
    return owner in (user, user.partition("@")[0])


def local_time(time: datetime) -> str:
    """A time in the time zone of this machine."""
    return f"{time.astimezone():%Y-%m-%d %H:%M %Z}".strip()


def reserve(
    place: HistoryLocation, device: KnownDevice, owner: str, for_s: float, note: str = ""
) -> tuple[Reservation, str | None]:
    """Reserve a device, or replace the owner's reservation of it.

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
        DeviceError: Somebody else has reserved it.
        StoreError: The history cannot be used.
    """
    from etdeploy.history.store import device_pool

    with _changes(place) as connection:
        found = _find(device_pool.active_reservations(connection), device)
        if found and found.owner != owner and (error := refusal(found, device.device, owner)):
            raise error
        made = device_pool.reserve(connection, device, owner, for_s, note)
        return made, device_pool.busy_in(connection, device)


def release(
    place: HistoryLocation, device: KnownDevice, user: str, *, force: bool = False
) -> Reservation | None:
    """End a reservation, with `force` also somebody else's; None if there is none.

    Raises:
        DeviceError: Somebody else has reserved it.
        StoreError: The history cannot be used.
    """
    from etdeploy.history.store import device_pool

    with _changes(place) as connection:
        found = _find(device_pool.active_reservations(connection), device)
        if found is None:
            return None
        if not force and not is_owner(user, found.owner):
            raise DeviceError(
                _reserved_text(found),
                place=device.device,
                remedy="Ask them, or end their reservation: "
                f"etdeploy farm release {quoted(device.device)} --force{store_option(place)}",
            )
        device_pool.release(connection, device)
        return found


def active_reservations(place: HistoryLocation) -> tuple[Reservation, ...]:
    """The reservations that have not ended, by the database's clock; those that end first first.

    Raises:
        StoreError: The history cannot be read.
    """
    from etdeploy.history.store.sqlite import reservations_at

    return tuple(sorted(reservations_at(place), key=lambda each: (each.until, each.device)))


def refusal(found: Reservation, device: str, user: str) -> DeviceError | None:
    """Why USER@HOST may not use a device now; None for the owner of its reservation."""
    if is_owner(user, found.owner):
        return None
    return DeviceError(
        _reserved_text(found),
        place=device,
        remedy="Wait until then, or use another device: etdeploy devices\n"
        f"If {found.owner} does not need it: etdeploy farm release {quoted(found.device)} --force",
    )


def _reserved_text(found: Reservation) -> str:
    note = f": {found.note}" if found.note else ""
    return f"{found.owner} has reserved this device until {local_time(found.until)}{note}"


def quarantine_device(
    place: HistoryLocation, device: KnownDevice, reason: str, by: str
) -> Quarantined:
    """Quarantine a device, or give it the new reason; `by` is USER@HOST, or a night.

    Raises:
        StoreError: The history cannot be used.
    """
    from etdeploy.history.store import device_pool

    with _changes(place) as connection:
        return device_pool.quarantine_device(connection, device, reason, by)


def end_quarantine(place: HistoryLocation, device: KnownDevice) -> Quarantined | None:
    """Let nights use a device again, and return why it was quarantined; None if it was not.

    Raises:
        StoreError: The history cannot be used.
    """
    from etdeploy.history.store import device_pool

    with _changes(place) as connection:
        found = _find(device_pool.all_quarantined(connection), device)
        if found:
            device_pool.take_back(connection, device)
        return found


def quarantined_devices(place: HistoryLocation) -> tuple[Quarantined, ...]:
    """The devices that are quarantined, the earliest first.

    Raises:
        StoreError: The history cannot be read.
    """
    from etdeploy.history.store import device_pool

    with _reads(place) as connection:
        return tuple(device_pool.all_quarantined(connection)) if connection else ()


@contextmanager
def _changes(place: HistoryLocation) -> Iterator[Connection]:
    """A transaction during which nobody else changes reservations or quarantine."""
    from etdeploy.history.store import device_pool
    from etdeploy.history.store.store import open_store

    with open_store(place) as store, store.transaction(writes=True) as connection:
        device_pool.alone(connection)
        yield connection


@contextmanager
def _reads(place: HistoryLocation) -> Iterator[Connection | None]:
    """A transaction that reads; None where there is no history yet."""
    from etdeploy.history.store.store import open_store

    if place.file and not place.file.exists():
        yield None
        return
    with open_store(place, read_only=True) as store, store.transaction() as connection:
        yield connection


def _find(known: Iterable[S], device: KnownDevice) -> S | None:
    """What is known about a device; its name tells a board after it was started again."""
    fit = (each for each in known if each.is_of(device.identity, device.host, device.device))
    return next(fit, None)


def find_device(text: str, place: HistoryLocation) -> KnownDevice:
    """Find the device to reserve or to quarantine.

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
        if found := select_device(known, text, this_host()):
            return found
        names = ", ".join(sorted({each.device for each in known})[:_MOST_NAMED])
        more = f"Devices that the history knows: {names}" if names else ""
        error.remedy = "\n".join(filter(None, (error.remedy, more)))
        raise


def find_known_device(text: str, place: HistoryLocation) -> KnownDevice:
    """Find the device to give back, which may be unplugged now; raises as `find_device`."""
    return select_device(known_devices(place), text, this_host()) or find_device(text, place)


def select_device(known: Iterable[KnownDevice], text: str, here: str) -> KnownDevice | None:
    """The known device with this name, identity or serial number, on the host `here`."""
    found = {(each.identity, each.host): each for each in known if text in _names(each, here)}
    if len(found) > 1:
        raise UsageError(
            f"{text!r} may be one of {len(found)} devices",
            remedy="Name it by its identity: " + ", ".join(sorted(name for name, _ in found)),
        )
    return next(iter(found.values()), None)


def known_devices(place: HistoryLocation) -> list[KnownDevice]:
    """The devices that were measured, reserved or quarantined."""
    from etdeploy.history.store import device_pool

    with _reads(place) as connection:
        return device_pool.known_devices(connection) if connection else []


def _names(device: KnownDevice, here: str) -> tuple[str, ...]:
    if device.host not in ("", here):
        return (f"{device.device}@{device.host}",)
    serial = device.identity.partition("-")[2]
    return (device.device, device.identity, *([serial] if serial else []))


def _plugged_in(text: str) -> KnownDevice:
    from etdeploy.devices.base import lock_name
    from etdeploy.devices.registry import open_device

    opened = open_device(text)
    try:
        identity = lock_name(opened)
        host = host_of(identity, this_host())
        return KnownDevice(identity=identity, device=opened.name, host=host)
    finally:
        opened.close()


@contextmanager
def lock_device(lock: Path, identity: str, device: str, progress: Progress) -> Iterator[None]:
    """Hold a device for one run, unless somebody else has reserved it.

    Args:
        lock: The file that every run on the device locks.
        identity: Of the device.
        device: Its name.
        progress: Called once if the run has to wait.

    Raises:
        DeviceError: Somebody else has reserved it.
        Interrupted: The run was stopped while waiting.
    """
    waited = False

    def tell(text: str, fraction: float | None = None) -> None:
        nonlocal waited
        waited = True
        progress(text, fraction)

    require_unreserved(identity, device)
    with exclusive(lock, f"device {device}", tell):
        if waited:  # and meanwhile somebody may have
            require_unreserved(identity, device)
        yield


_lock = threading.Lock()
# Whether the history could not be read in this process: then it is not waited for again.
_unreadable = False


def require_unreserved(identity: str, device: str) -> None:
    """Refuse a device that somebody else has reserved.

    A history that cannot be read stops no run: a warning says so once.
    """
    global _unreadable
    with _lock:
        if _unreadable:
            return
        try:
            place = resolve_location()
            if place is None or (place.file and not place.file.is_file()):
                return
            from etdeploy.history.store.sqlite import reservations_at

            found = reservations_at(place)
        except EtdeployError as error:
            _unreadable = True
            console.warn(f"cannot tell whether {device} is reserved: {error}")
            return
    own = _find(found, KnownDevice(identity=identity, device=device, host=this_host()))
    if own and (refused := refusal(own, device, current_user())):
        raise refused
