"""Opens a history's database."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from sqlalchemy import Engine, create_engine, event, func, select
from sqlalchemy.engine import Connection, make_url
from sqlalchemy.pool import QueuePool

from etdeploy.history.place import CONNECT_S, Place
from etdeploy.history.store.sqlite import PATIENCE_S, reader, writer

_STATEMENT_S = 60
WRITES = "etdeploy_writes"


def engine_of(place: Place, *, read_only: bool = False) -> Engine:
    """An engine that connects when it is first used.

    Args:
        place: Where the history is. A file's folder has to exist.
        read_only: Whether nothing is written; then a file on a read-only disk will do.

    Raises:
        ModuleNotFoundError: The driver is not installed.
        ArgumentError: The URL is none.
    """
    if place.file is None:
        return _postgres_engine(str(place.url))
    file = place.file
    engine = create_engine(
        "sqlite+pysqlite://",
        creator=lambda: reader(file) if read_only else writer(file),
        # Each close of the last connection writes the journal back and waits for the disk.
        poolclass=QueuePool,
        pool_size=1,
    )
    event.listen(engine, "begin", _begin)
    return engine


def _postgres_engine(url: str) -> Engine:
    parsed = make_url(url).set(drivername="postgresql+psycopg")
    if "connect_timeout" not in parsed.query:
        parsed = parsed.update_query_dict({"connect_timeout": str(CONNECT_S)})
    engine = create_engine(parsed, pool_size=1)
    event.listen(engine, "connect", _set_limits)
    return engine


def _set_limits(connection: Any, _record: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"SET lock_timeout = '{PATIENCE_S:g}s'")
        cursor.execute(f"SET statement_timeout = '{_STATEMENT_S}s'")
    connection.commit()


def _begin(connection: Connection) -> None:
    # A transaction that reads first and then writes could not wait for another writer.
    writes = connection.get_execution_options().get(WRITES)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


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
