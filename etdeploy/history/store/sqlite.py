"""Connections to a SQLite file, by Python's own module: SQLAlchemy takes longer to import."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path
from urllib.parse import quote

# How long a lock that another has is waited for, in seconds.
PATIENCE_S = 5.0
_AGAIN_S = 0.05
# In KiB, for a list over many runs.
_CACHE_KIB = 16_000


def writer(file: Path) -> sqlite3.Connection:
    """A connection to a file that may be written to; it is made if it is not there.

    Raises:
        sqlite3.Error: It cannot be opened.
    """
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


def reader(file: Path) -> sqlite3.Connection:
    """A connection that only reads, also on a disk that is read-only.

    Raises:
        sqlite3.Error: It cannot be opened.
    """
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
