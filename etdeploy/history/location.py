"""Where the history is: a SQLite file, or a PostgreSQL database. Nothing is opened here."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from etdeploy.core.commands import quoted
from etdeploy.core.errors import StoreError

VARIABLE = "ETDEPLOY_STORE"
OFF = "none"
# What PostgreSQL needs, and how long a connection to a server is waited for, in seconds.
CONNECT_S = 3
_FILE = "history.db"
_POSTGRES = ("postgresql", "postgres", "postgresql+psycopg")
_EXAMPLES = (
    f"export {VARIABLE}=/path/to/history.db\n"
    f"export {VARIABLE}=postgresql://USER@HOST/DATABASE\n"
    f"export {VARIABLE}={OFF}   keeps no history"
)


@dataclass(frozen=True)
class HistoryLocation:
    """Where a history is.

    Attributes:
        shown: For messages and lists: without a password.
        file: Of SQLite; None for PostgreSQL.
        url: Of PostgreSQL, as the user wrote it.
    """

    shown: str
    file: Path | None = None
    url: str | None = field(default=None, repr=False)


def data_folder() -> Path:
    """The user's folder for data that etdeploy cannot make again; it may not exist yet."""
    from platformdirs import user_data_path

    return user_data_path("etdeploy")


def default_file() -> Path:
    """The history of a user who names none."""
    return data_folder() / _FILE


def resolve_location(named: str | None = None) -> HistoryLocation | None:
    """The history that a command line or the environment names; by default the user's own.

    Args:
        named: The value of `--store`: a URL, or the path of a SQLite file.

    Returns:
        None where no history is wanted.

    Raises:
        StoreError: It names nothing that can be a history.
    """
    chosen, origin = (named, "--store") if named else (os.environ.get(VARIABLE), VARIABLE)
    if not chosen:
        return _sqlite(default_file())
    if chosen.lower() == OFF:
        return None
    if "://" not in chosen:
        return _sqlite(Path(chosen))
    scheme, _, rest = chosen.partition("://")
    if scheme == "sqlite":
        # As SQLAlchemy writes them: sqlite:///relative, sqlite:////absolute.
        if not rest.startswith("/") or rest == "/":
            raise _refused("a URL of SQLite has three slashes and a path", origin)
        return _sqlite(Path(unquote(rest[1:])))
    if scheme not in _POSTGRES:
        raise _refused(f"a history is kept in SQLite or PostgreSQL, and not in {scheme}", origin)
    return _postgres(chosen, rest, origin)


def require_location(named: str | None) -> HistoryLocation:
    """The same for a verb that needs a history.

    Raises:
        StoreError: None is wanted, or it cannot be one.
    """
    place = resolve_location(named)
    if place is None:
        raise StoreError(
            "no history is kept",
            place=f"{VARIABLE}={OFF}",
            remedy=f"Name one: --store FILE, or unset {VARIABLE}",
        )
    return place


def store_option(place: HistoryLocation) -> str:
    """` --store PLACE` for a command that is to use this history; empty if it does by default."""
    try:
        is_default = place == resolve_location()
    except StoreError:
        is_default = False
    return "" if is_default else f" --store {quoted(place.shown)}"


def _sqlite(path: Path) -> HistoryLocation:
    try:
        file = path.expanduser().absolute()
    except RuntimeError as error:  # ~nobody
        raise StoreError(f"this is not a path: {error}", place=str(path)) from error
    return HistoryLocation(shown=str(file), file=file)


def _postgres(url: str, rest: str, origin: str) -> HistoryLocation:
    try:
        parts = urlsplit(f"postgresql://{rest}")
        port = f":{parts.port}" if parts.port else ""
    except ValueError as error:  # its text may contain the password
        raise _refused("this is not a URL of PostgreSQL", origin) from error
    user = f"{parts.username}@" if parts.username else ""
    # What follows a question mark may be a password, too.
    return HistoryLocation(
        shown=f"postgresql://{user}{parts.hostname or ''}{port}{parts.path}", url=url
    )


def _refused(message: str, origin: str) -> StoreError:
    return StoreError(message, place=origin, remedy=_EXAMPLES)
