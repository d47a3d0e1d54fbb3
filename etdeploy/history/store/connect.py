"""Opens a history's database."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import Engine, create_engine, event
from sqlalchemy.engine import Connection, make_url
from sqlalchemy.pool import QueuePool

from etdeploy.history.place import Place

# How long a connection to a server, and a lock that another has, are waited for, in seconds.
CONNECT_S = 3
PATIENCE_S = 5.0
_STATEMENT_S = 60
_AGAIN_S = 0.05
WRITES = "etdeploy_writes"
# In KiB, for a list over many runs.
_CACHE_KIB = 16_000


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
        creator=lambda: _reader(file) if read_only else _writer(file),
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


def _writer(file: Path) -> sqlite3.Connection:
    connection = _connected(file, "mode=rwc")
    try:
        _keep_a_journal(connection)
        # A crash of the machine may cost the last run, never the file; its record is a file, too.
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA foreign_keys = ON")
    except sqlite3.Error:
        # Else it stays open as long as the error is looked at.
        connection.close()
        raise
    return connection


def _keep_a_journal(connection: sqlite3.Connection) -> None:
    """With one, readers and a writer do not wait for each other.

    A file system that cannot do it keeps its own way. SQLite does not wait where several processes
    begin with it at the same moment.
    """
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() >= until:
                raise
            time.sleep(_AGAIN_S)
        else:
            return


def _reader(file: Path) -> sqlite3.Connection:
    connection = _connected(file, "mode=ro")
    try:
        connection.execute("SELECT count(*) FROM sqlite_master")
    except sqlite3.OperationalError as error:
        connection.close()
        if "locked" in str(error) or _has_content(file.with_name(f"{file.name}-wal")):
            raise
        # On a read-only disk, its journal cannot be made, and nobody writes to it either.
        connection = _connected(file, "immutable=1")
    connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
    return connection


def _connected(file: Path, mode: str) -> sqlite3.Connection:
    """A connection that begins its transactions only where SQLAlchemy does."""
    return sqlite3.connect(
        f"file:{quote(str(file))}?{mode}",
        uri=True,
        timeout=PATIENCE_S,
        isolation_level=None,
        check_same_thread=False,
    )


def _begin(connection: Connection) -> None:
    # A transaction that reads first and then writes could not wait for another writer.
    writes = connection.get_execution_options().get(WRITES)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _has_content(path: Path) -> bool:
    try:
        return path.stat().st_size > 0
    except OSError:
        return False
