"""A look at the reservations that costs a run little, and changes nothing."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path

from etdeploy.history.place import Place
from etdeploy.history.shelved import Reservation
from etdeploy.history.store.sqlite import reader

_COLUMNS = ("identity", "device", "host", "owner", "until", "note")
_TABLE = "etdeploy_reservations"


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
    from etdeploy.history.store.connect import engine_of
    from etdeploy.history.store.errors import explained
    from etdeploy.history.store.shelf import active_reservations

    with explained(place):
        engine = engine_of(place, read_only=True)
        try:
            with engine.connect() as connection:
                return active_reservations(connection)
        finally:
            engine.dispose()
