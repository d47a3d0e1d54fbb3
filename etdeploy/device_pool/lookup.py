"""Devices by name: those that are plugged in, and those that the history knows."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from etdeploy.core import console
from etdeploy.core.errors import DeviceError, EtdeployError, UsageError
from etdeploy.core.files.locks import exclusive
from etdeploy.core.values import Progress
from etdeploy.device_pool.reservations import myself, this_host
from etdeploy.history.location import HistoryLocation, resolve_location
from etdeploy.history.nights import Shelved, host_of

_MOST_NAMED = 12


def find_device(text: str, place: HistoryLocation) -> Shelved:
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


def find_kept(text: str, place: HistoryLocation) -> Shelved:
    """The same for one that is to be given back, and that may be gone or off.

    Raises:
        EtdeployError: As `find_device`.
    """
    return chosen(known_devices(place), text, this_host()) or find_device(text, place)


def chosen(known: Iterable[Shelved], text: str, here: str) -> Shelved | None:
    """The known device with this name, identity or serial number."""
    found = {(each.identity, each.host): each for each in known if text in _names(each, here)}
    if len(found) > 1:
        raise UsageError(
            f"{text!r} may be one of {len(found)} devices",
            remedy="Name it by its identity: " + ", ".join(sorted(name for name, _ in found)),
        )
    return next(iter(found.values()), None)


def known_devices(place: HistoryLocation) -> list[Shelved]:
    """Devices that were measured, reserved or set aside."""
    from etdeploy.history.store import device_pool
    from etdeploy.history.store.store import open_store

    if place.file and not place.file.exists():
        return []
    with open_store(place, read_only=True) as store, store.transaction() as connection:
        return device_pool.known_devices(connection)


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


_lock = threading.Lock()
# Whether the history could not be read in this process: then it is not waited for again.
_unreadable = False


@contextmanager
def device_held(lock: Path, identity: str, device: str, progress: Progress) -> Iterator[None]:
    """Holds a device for one run alone, unless somebody else has reserved it.

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

    require_free(identity, device)
    with exclusive(lock, f"device {device}", tell):
        if waited:  # and meanwhile somebody may have
            require_free(identity, device)
        yield


def require_free(identity: str, device: str) -> None:
    """Refuses a device that somebody else has reserved.

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
            console.warn(f"whether {device} is reserved is not known: {error}")
            return
    from etdeploy.device_pool.reservations import covering, refusal

    kept = covering(found, identity, this_host(), device)
    if kept and (why := refusal(kept, device, myself())):
        raise why
