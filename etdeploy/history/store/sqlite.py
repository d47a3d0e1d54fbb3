"""Connections to a SQLite file, by Python's own module: SQLAlchemy takes longer to import."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path
from urllib.parse import quote

from etdeploy.core.commands import pip_command
from etdeploy.core.errors import StoreError
from etdeploy.history.location import CONNECT_S, HistoryLocation
from etdeploy.history.nights import Reservation

# How long a lock that another has is waited for, in seconds.
PATIENCE_S = 5.0
_AGAIN_S = 0.05
# In KiB, for a list over many runs.
_CACHE_KIB = 16_000


def writer(file: Path) -> sqlite3.Connection:
    """A connection to a file that may be written to; it is made if it is not there."""
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
    """A WAL lets readers and a writer run concurrently.

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


def reader(file: Path) -> sqlite3.Connection:
    """A connection that only reads, also on a disk that is read-only."""
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


def _has_content(path: Path) -> bool:
    try:
        return path.stat().st_size > 0
    except OSError:
        return False


_COLUMNS = ("identity", "device", "host", "owner", "until", "note")
_TABLE = "etdeploy_reservations"
# In the form of the tables, whose order as texts is that of the times.
_SERVER_NOW = (
    "to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS') || '+00:00'"
)


def reservations_at(place: HistoryLocation) -> list[Reservation]:
    """Reservations that have not ended; none where there is no history yet.

    Raises:
        StoreError: The history cannot be read.
    """
    if place.file is None:
        return _of_server(place)
    if not place.file.is_file():
        return []
    try:
        return _of_file(place.file)
    except sqlite3.Error as error:
        from etdeploy.history.store.errors import to_user_error

        raise to_user_error(error, place) from error


def _of_file(file: Path) -> list[Reservation]:
    """The same without SQLAlchemy, whose import takes longer than all of this."""
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    with closing(reader(file)) as connection:
        named = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
        if connection.execute(named, (_TABLE,)).fetchone() is None:
            return []
        query = f"SELECT {', '.join(_COLUMNS)} FROM {_TABLE} WHERE until > ?"  # noqa: S608 - our own names
        rows = connection.execute(query, (now,)).fetchall()
    return [Reservation.model_validate(dict(zip(_COLUMNS, row, strict=True))) for row in rows]


def _of_server(place: HistoryLocation) -> list[Reservation]:
    """The same by the driver alone, for the same reason; the time is the server's."""
    try:
        import psycopg
    except ModuleNotFoundError as error:
        raise StoreError(
            "the driver for PostgreSQL is not installed",
            place=place.shown,
            remedy=pip_command("etdeploy[postgres]"),
        ) from error
    query = f"SELECT {', '.join(_COLUMNS)} FROM {_TABLE} WHERE until > {_SERVER_NOW}"  # noqa: S608 - our own names
    address = f"postgresql://{str(place.url).partition('://')[2]}"
    timeout_s = None if "connect_timeout=" in address else CONNECT_S
    try:
        with psycopg.connect(address, connect_timeout=timeout_s) as connection:
            rows = connection.execute(query.encode()).fetchall()
    except psycopg.errors.UndefinedTable:
        return []
    except psycopg.Error as error:
        from etdeploy.history.store.errors import to_user_error

        # Its text may have the password, so it is no cause.
        raise to_user_error(error, place) from None
    return [Reservation.model_validate(dict(zip(_COLUMNS, row, strict=True))) for row in rows]
