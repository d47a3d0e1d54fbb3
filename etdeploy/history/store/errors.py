"""What databases say when they cannot, as errors that a user can act on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from sqlalchemy import Engine, create_engine, event, func, select
from sqlalchemy.engine import Connection, make_url
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError, IntegrityError, SQLAlchemyError
from sqlalchemy.pool import QueuePool

from etdeploy.core.commands import pip_command, quoted
from etdeploy.core.errors import BuildError, EtdeployError, StoreError
from etdeploy.history.location import CONNECT_S, VARIABLE, HistoryLocation, default_file
from etdeploy.history.store.sqlite import PATIENCE_S, reader, writer

UPGRADE = "Use the etdeploy that wrote it, or a newer one: pip install --upgrade etdeploy"
_OTHER = f"Or name another history: export {VARIABLE}=/path/to/history.db"
_HIDDEN = "***"

# What SQLite says, with what it means and what to do; {file} and {folder} are quoted for a shell.
_SQLITE = (
    ("database is locked", "another program has locked it",
     "Close what has it open, and run the same command again. This lists it: fuser -v {file}"),
    ("readonly database", "it cannot be written to",
     "Look at its owner and permissions, and at those of its folder: ls -la {folder}"),
    ("unable to open database file", "it cannot be opened",
     "Look at its owner and permissions, and at those of its folder: ls -la {folder}"),
    ("not a database", "this is not a SQLite database",
     "Name a path where there is no file yet, with ETDEPLOY_STORE, --store or farm.yaml's store"),
    ("malformed", "the file is damaged",
     "Save what can be read:  sqlite3 {file} .recover | sqlite3 {backup}"),
    ("disk I/O error", "the disk reports an error", "Look at the disk's messages: dmesg | tail"),
)  # fmt: skip
_POSTGRES = (
    ("password authentication failed", "Look at the user and the password in the URL; a password "
     "can also stand in ~/.pgpass."),
    ("no password supplied", "Write the password into the URL or into ~/.pgpass."),
    ("does not exist", "Create what the message names, for example: createdb DATABASE"),
    ("permission denied", "Let the database's owner grant it: GRANT ALL ON SCHEMA public TO USER"),
    ("must be owner", "Let the owner of the tables run this command once."),
    ("read-only", "Name the server that is written to, not a copy of it."),
    ("lock timeout", "Another program has locked the tables; end it, and run the command again."),
    ("statement timeout", "The server is too busy; run the command again later."),
)  # fmt: skip
_UNREACHED = "Look whether the server runs, and whether this machine may connect to it."


# Which of these pass by themselves, as does a server that cannot be reached.
_TRANSIENT = ("database is locked", "read-only", "lock timeout", "statement timeout")


class UnreachableError(StoreError):
    """The history does not answer now, and may do so later without anybody's help."""


def is_refused(error: EtdeployError) -> bool:
    """Whether a database will never take what it was given, however often it is asked."""
    return isinstance(error.__cause__, DataError | IntegrityError)


@contextmanager
def explain_errors(place: HistoryLocation) -> Iterator[None]:
    """Turns a database's errors in the block into one for the user."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != "psycopg":
            raise
        raise StoreError(
            "the driver for PostgreSQL is not installed",
            place=place.shown,
            remedy=pip_command("etdeploy[postgres]"),
        ) from error
    except ArgumentError as error:
        raise StoreError("this is not a URL of PostgreSQL", place=place.shown) from error
    except SQLAlchemyError as error:
        raise _for_user(error, place) from _without_password(error, place)
    except OSError as error:
        what = error.strerror or str(error)
        raise StoreError(
            f"the history cannot be opened: {what}", place=place.shown, remedy=_OTHER
        ) from error


def _for_user(error: SQLAlchemyError, place: HistoryLocation) -> EtdeployError:
    return to_user_error(
        error.orig if isinstance(error, DBAPIError) and error.orig else error, place
    )


def to_user_error(error: Exception, place: HistoryLocation) -> EtdeployError:
    """What a driver says, as an error for the user."""
    text = _hidden(str(error).strip(), place) or type(error).__name__
    if "disk is full" in text or "No space left on device" in text:
        return BuildError(
            f"the history cannot be written: {text.splitlines()[0]}",
            place=place.shown,
            remedy=f"Make room on its disk.\n{_OTHER}",
        )
    return _sqlite(text, place) if place.file else _postgres(text, place)


def _sqlite(text: str, place: HistoryLocation) -> StoreError:
    assert place.file is not None  # noqa: S101 - told by the caller
    words = {
        "file": quoted(place.file),
        "folder": quoted(place.file.parent),
        "backup": quoted(f"{place.file}.saved"),
    }
    for said, meaning, remedy in _SQLITE:
        if said in text:
            if said == "not a database" and place.file == default_file():
                remedy = "Move it away, and a new one is made: mv {file} {backup}"
            kind = UnreachableError if said in _TRANSIENT else StoreError
            return kind(
                f"the history cannot be used: {meaning}",
                place=place.shown,
                remedy=f"{remedy.format(**words)}\n{_OTHER}",
            )
    return StoreError(f"the history cannot be used: {text}", place=place.shown, remedy=_OTHER)


def _postgres(text: str, place: HistoryLocation) -> StoreError:
    first = next((line for line in text.splitlines() if line.strip()), text).strip()
    known = next(((said, told) for said, told in _POSTGRES if said in text), None)
    said, remedy = known or ("", _UNREACHED)
    kind = UnreachableError if known is None or said in _TRANSIENT else StoreError
    return kind(
        f"the history cannot be used: {first}", place=place.shown, remedy=f"{remedy}\n{_OTHER}"
    )


def _hidden(text: str, place: HistoryLocation) -> str:
    for secret in _secrets(place):
        text = text.replace(secret, _HIDDEN)
    return text


def _secrets(place: HistoryLocation) -> set[str]:
    """The passwords of a URL, as written and as meant."""
    parts = urlsplit(place.url or "")
    found = {parts.password or "", unquote(parts.password or "")}
    found |= {value for values in parse_qs(parts.query).values() for value in values if value}
    return {secret for secret in found if len(secret) > 2}


def _without_password(error: SQLAlchemyError, place: HistoryLocation) -> SQLAlchemyError | None:
    """The error as a cause, which a bug report would print; None if it names a password."""
    return None if any(secret in str(error) for secret in _secrets(place)) else error


_STATEMENT_S = 60
WRITES = "etdeploy_writes"


def create_store_engine(place: HistoryLocation, *, read_only: bool = False) -> Engine:
    """An engine that connects when it is first used."""
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


def database_now(connection: Connection) -> datetime:
    """The time in UTC, in whole seconds. A SQLite file has the clock of this machine."""
    if connection.dialect.name == "postgresql":
        found: datetime = connection.scalars(select(func.clock_timestamp())).one()
    else:
        found = datetime.now(timezone.utc)
    return found.astimezone(timezone.utc).replace(microsecond=0)


def utc_text(time: datetime) -> str:
    """As the tables have it: the order of the texts is that of the times."""
    return time.astimezone(timezone.utc).isoformat(timespec="seconds")
