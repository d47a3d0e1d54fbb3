"""Who runs a farm: a lock on this machine, and a lease in the database between hosts."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from etdeploy.core.errors import UsageError
from etdeploy.core.files.locks import try_lock
from etdeploy.device_pool import current_user
from etdeploy.history.nights import CoordinatorProcess

if TYPE_CHECKING:
    from etdeploy.history.store.store import Connection


class TakenError(UsageError):
    """Another coordinator has the farm."""


class Lease:
    """A farm's entry in the database, by the database's clock."""

    def __init__(self, farm: str, mine: CoordinatorProcess) -> None:
        self.farm, self.mine = farm, mine

    def take(self, connection: Connection, *, anew: bool = True) -> None:
        """Take the farm, or renew the lease.

        Args:
            connection: In a transaction that writes.
            anew: Whether also from a coordinator that is gone; one that was paused must not, for it
                does not know what the other did.

        Raises:
            TakenError: Another process has it.
        """
        from etdeploy.history.store import nights

        if other := nights.take_farm(connection, self.farm, self.mine, anew=anew):
            raise taken(self.farm, other)

    def require(self, connection: Connection) -> None:
        """Make sure that nobody takes the farm until the transaction ends."""
        from etdeploy.history.store import nights

        other = nights.farm_holder(connection, self.farm)
        if other is None:
            self.take(connection)
        elif other.token != self.mine.token:
            raise taken(self.farm, other)

    def give_back(self, connection: Connection) -> None:
        """Let another coordinator have the farm at once."""
        from etdeploy.history.store import nights

        nights.release_farm(connection, self.farm, self.mine.token)


def taken(farm: str, by: CoordinatorProcess) -> TakenError:
    """The error that says who runs a farm, and where."""
    host = by.who.rpartition("@")[2]
    return TakenError(
        f"{by.who} is running the farm {farm}: process {by.process} on {host}, since {by.since}",
        remedy=f"Wait for its end:  etdeploy farm status\nOr end it there:  kill {by.process}",
    )


@contextmanager
def lock_farm(lock: Path, farm: str) -> Iterator[CoordinatorProcess]:
    """Hold a farm on this machine; yields what others are told of this process.

    It has the token of the process that had the lock before and has ended, so it need not wait for
    the end of that one's lease.
    """
    with try_lock(lock) as free:
        other = _read_holder(lock)
        if not free and other:
            raise taken(farm, other)
        if not free:
            raise TakenError(f"another process on this machine is running the farm {farm}")
        me = current_user()
        # A data folder may have been copied to another machine.
        token = other.token if other and other.who == me else secrets.token_hex(8)
        since = datetime.now(timezone.utc).isoformat(timespec="seconds")
        mine = CoordinatorProcess(token=token, who=me, process=os.getpid(), since=since)
        # If that fails, the next process waits until this one counts as gone.
        with contextlib.suppress(OSError):
            # In place: another file would not be the locked one.
            lock.write_text(mine.model_dump_json())
        yield mine


def _read_holder(lock: Path) -> CoordinatorProcess | None:
    try:
        return CoordinatorProcess.model_validate_json(lock.read_bytes())
    except (OSError, ValidationError):
        return None
