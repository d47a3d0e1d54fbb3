"""The time, by the database's own clock: hosts that write to it may each have another."""

from __future__ import annotations

from datetime import datetime, timezone

from sqlalchemy import func, select
from sqlalchemy.engine import Connection


def now_of(connection: Connection) -> datetime:
    """The time in UTC, in whole seconds. A SQLite file has the clock of this machine."""
    if connection.dialect.name == "postgresql":
        found: datetime = connection.scalars(select(func.clock_timestamp())).one()
    else:
        found = datetime.now(timezone.utc)
    return found.astimezone(timezone.utc).replace(microsecond=0)


def text_of(time: datetime) -> str:
    """As the tables have it: the order of the texts is that of the times."""
    return time.astimezone(timezone.utc).isoformat(timespec="seconds")
