"""A look at the reservations that costs a run little, and changes nothing."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path

from etdeploy.core.errors import StoreError
from etdeploy.core.text.install import pip_command
from etdeploy.history.place import CONNECT_S, Place
from etdeploy.history.shelved import Reservation
from etdeploy.history.store.sqlite import reader

_COLUMNS = ("identity", "device", "host", "owner", "until", "note")
_TABLE = "etdeploy_reservations"
# In the form of the tables, whose order as texts is that of the times.
_SERVER_NOW = (
    "to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS') || '+00:00'"
)


def reservations_at(place: Place) -> list[Reservation]:
    """Reservations that have not ended; none where there is no history yet, or an older one.

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
        from etdeploy.history.store.errors import as_error

        raise as_error(error, place) from error


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


def _of_server(place: Place) -> list[Reservation]:
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
        from etdeploy.history.store.errors import as_error

        # Its text may have the password, so it is no cause.
        raise as_error(error, place) from None
    return [Reservation.model_validate(dict(zip(_COLUMNS, row, strict=True))) for row in rows]
