"""What every run asks before it uses a device: whether somebody else has reserved it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from etdeploy.core import console
from etdeploy.core.errors import EtdeployError
from etdeploy.core.files.locks import exclusive
from etdeploy.core.progress import Progress
from etdeploy.history.place import place_of
from etdeploy.shelf.owner import myself, this_host

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

    Raises:
        DeviceError: Somebody else has reserved it.
    """
    global _unreadable
    with _lock:
        if _unreadable:
            return
        try:
            place = place_of()
            if place is None or (place.file and not place.file.is_file()):
                return
            from etdeploy.history.store.glance import reservations_at

            found = reservations_at(place)
        except EtdeployError as error:
            _unreadable = True
            console.warn(f"whether {device} is reserved is not known: {error}")
            return
    from etdeploy.shelf.reservations import covering, refusal

    kept = covering(found, identity, this_host(), device)
    if kept and (why := refusal(kept, device, myself())):
        raise why
