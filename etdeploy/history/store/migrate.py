"""Brings a database to the tables of this release."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from sqlalchemy import Connection, Engine, inspect, text

from etdeploy.core.commands import quoted
from etdeploy.core.errors import StoreError
from etdeploy.core.files.locks import exclusive
from etdeploy.history.location import VARIABLE, HistoryLocation
from etdeploy.history.store import tables
from etdeploy.history.store.errors import UPGRADE, WRITES

SCRIPTS = Path(__file__).parent / "migrations"
# Any number; while it is held, no other etdeploy changes the tables.
_ADVISORY_LOCK = 0x6574_6465
_EXPORT = f"""Export its runs with the etdeploy that wrote it: etdeploy history export runs.jsonl
Then name another history, and import them:
export {VARIABLE}=/path/to/another.db
etdeploy history import runs.jsonl"""


def revision_of(engine: Engine, place: HistoryLocation) -> str | None:
    """The revision of the tables; None for a database that has none of them."""
    with engine.connect() as connection:
        return _revision(connection, place)


def migrate(engine: Engine, place: HistoryLocation, scripts: Path = SCRIPTS) -> None:
    """Brings the tables to the newest revision; a SQLite file is copied before.

    Nothing is changed if it fails.
    """
    if place.file is None:
        _upgrade(engine, place, scripts)
        return
    with exclusive(place.file.with_name(f"{place.file.name}.lock"), f"history {place.file}"):
        before = revision_of(engine, place)
        if before in _known(scripts)[:-1]:
            _copy(place.file, place.file.with_name(f"{place.file.name}.revision-{before}"))
        _upgrade(engine, place, scripts)


def require_known(revision: str | None, place: HistoryLocation, scripts: Path = SCRIPTS) -> None:
    """Refuses tables that this release cannot bring to its own form."""
    known = _known(scripts)
    if revision is None or revision in known:
        return
    is_newer = revision > known[-1]
    raise StoreError(
        f"{'a newer' if is_newer else 'an earlier'} etdeploy wrote this history (its tables have "
        f"revision {revision}, and this etdeploy needs {known[-1]}); nothing in it was changed",
        place=place.shown,
        remedy=UPGRADE if is_newer else _EXPORT,
    )


def _upgrade(engine: Engine, place: HistoryLocation, scripts: Path) -> None:
    from alembic import command
    from alembic.config import Config

    with engine.connect().execution_options(**{WRITES: True}) as connection, connection.begin():
        if engine.dialect.name == "postgresql":
            connection.execute(text(f"SELECT pg_advisory_xact_lock({_ADVISORY_LOCK})"))
        # Only now, for another process may have just done it.
        require_known(_revision(connection, place), place, scripts)
        config = Config()
        config.set_main_option("script_location", str(scripts).replace("%", "%%"))
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def _revision(connection: Connection, place: HistoryLocation) -> str | None:
    names = set(inspect(connection).get_table_names())
    if tables.VERSION_TABLE in names:
        found = connection.execute(text(f"SELECT version_num FROM {tables.VERSION_TABLE}"))  # noqa: S608 - our own name
        return found.scalar()
    foreign = names if connection.dialect.name == "sqlite" else names & set(tables.metadata.tables)
    if foreign:
        raise StoreError(
            f"this database is not a history of etdeploy; it has the table {min(foreign)}",
            place=place.shown,
            remedy="Name a new or empty one.",
        )
    return None


def _known(scripts: Path) -> list[str]:
    """The revisions of this release, the newest last: their files begin with them."""
    return sorted(path.name.partition("_")[0] for path in (scripts / "versions").glob("[0-9]*.py"))


def _copy(file: Path, copy: Path) -> None:
    """A copy of a SQLite file with everything that is in its journal."""
    copy.unlink(missing_ok=True)
    try:
        with closing(sqlite3.connect(file)) as connection:
            connection.execute("VACUUM INTO ?", (str(copy),))
    except sqlite3.Error as error:
        copy.unlink(missing_ok=True)
        raise StoreError(
            f"the history has to be brought to this release's tables, and cannot be copied before: "
            f"{error}",
            place=str(file),
            remedy=f"Make room beside it: df -h {quoted(file.parent)}",
        ) from error
