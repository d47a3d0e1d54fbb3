"""The history: every run's record, and what is asked of them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    Engine,
    Select,
    Text,
    cast,
    delete,
    func,
    insert,
    inspect,
    select,
    text,
    update,
)
from sqlalchemy.engine import Connection as Connection
from sqlalchemy.engine import RowMapping
from sqlalchemy.exc import IntegrityError

from etdeploy.core.commands import quoted
from etdeploy.core.errors import StoreError
from etdeploy.core.files.basic import not_regular
from etdeploy.core.files.locks import exclusive
from etdeploy.history.entry import HistoryEntry, Judgement, entry_from
from etdeploy.history.location import VARIABLE, HistoryLocation
from etdeploy.history.series import KEY_LENGTH, Series
from etdeploy.history.store import tables
from etdeploy.history.store.errors import UPGRADE, WRITES, create_store_engine, explain_errors
from etdeploy.history.store.tables import REVISION, in_parts, metrics, records, runs, series

if TYPE_CHECKING:
    from etdeploy.bench.records.record import RunRecord

# A year of nights with repeats is about a thousand runs of each, and all are in memory.
_SERIES_AT_ONCE = 50
_COLUMNS = tuple(field.name for field in fields(HistoryEntry) if field.name != "metrics")
# Most runs have the same versions, which are parsed once.
_ENTRY = (
    runs.c.id,
    *(runs.c[name] for name in _COLUMNS if name != "versions"),
    cast(runs.c.versions, Text).label("versions"),
)
_DEVICE_NAME = records.c.record[("device", "facts", "name")].as_string().label("device_name")


@dataclass(frozen=True)
class Filter:
    """Which runs are wanted; None for all.

    Attributes:
        recipe: Name of the recipe.
        device: A part of the device's name or model.
        since: Date and time in UTC, ISO 8601.
        until: The same; runs that started at that time are included.
        series: Key of the series, or how it begins.
        fit: Only those whose numbers can be compared, as `Entry.fit` has it.
    """

    recipe: str | None = None
    device: str | None = None
    since: str | None = None
    until: str | None = None
    series: str | None = None
    fit: bool = False


@dataclass(frozen=True)
class KnownSeries:
    """A series with what the history has of it: how many runs, and when the last one started."""

    series: Series
    runs: int
    last: str


@dataclass(frozen=True)
class MeasuredRun:
    """A run with its device: the label, and the name as `--device` takes it."""

    entry: HistoryEntry
    device: str
    device_name: str


class Store:
    """An open history; every method is a transaction of its own.

    Every one of them may raise StoreError or, where a disk is full, BuildError.
    """

    def __init__(self, engine: Engine, place: HistoryLocation) -> None:
        self._engine = engine
        self.place = place

    def add(self, record: RunRecord) -> bool:
        """Keeps a record; False if one of this `run_id` is there already, which is left alone."""
        with self.transaction(writes=True) as connection:
            return add_record(connection, record)

    def series(self, wanted: Filter) -> list[KnownSeries]:
        """The series that have such runs; the one with the latest run first."""
        last = func.max(runs.c.started_at)
        counted = (
            select(runs.c.series, func.count().label("runs"), last.label("last"))
            .where(*_conditions(wanted))
            .group_by(runs.c.series)
            .subquery()
        )
        query = (
            select(series.c.content, counted.c.runs, counted.c.last)
            .join_from(series, counted, series.c.key == counted.c.series)
            .where(*_of_series(wanted))
            .order_by(counted.c.last.desc(), series.c.key)
        )
        with self.transaction() as connection:
            return [
                KnownSeries(Series.model_validate(row.content), row.runs, row.last)
                for row in connection.execute(query)
            ]

    def entries(self, wanted: Filter, limit: int) -> list[HistoryEntry]:
        """The latest runs, the earliest of them first.

        Their order is that of their start; of those of the same second, that in which they were
        kept. A clock that was set back puts a run where it says that it was.
        """
        query = (
            _joined(select(*_ENTRY), wanted)
            .order_by(runs.c.started_at.desc(), runs.c.id.desc())
            .limit(limit)
        )
        with self.transaction() as connection:
            return _entries(connection, connection.execute(query).mappings())[::-1]

    def entries_of_series(
        self, keys: Sequence[str], since: str | None = None
    ) -> Iterator[tuple[str, list[HistoryEntry]]]:
        """All runs of each series, the earliest first, with few statements."""
        for start in range(0, len(keys), _SERIES_AT_ONCE):
            some = keys[start : start + _SERIES_AT_ONCE]
            found: dict[str, list[HistoryEntry]] = {key: [] for key in some}
            conditions = [runs.c.series.in_(some), *_conditions(Filter(since=since))]
            query = select(*_ENTRY).where(*conditions).order_by(runs.c.started_at, runs.c.id)
            with self.transaction() as connection:
                rows = connection.execute(query).mappings()
                for entry in _entries(connection, rows, select(runs.c.id).where(*conditions)):
                    found[entry.series].append(entry)
            yield from found.items()

    def revisions(self, since: str | None = None) -> set[str]:
        """The commits of all runs' recipes."""
        query = select(runs.c.git_revision).where(*_conditions(Filter(since=since))).distinct()
        with self.transaction() as connection:
            return {revision for revision in connection.scalars(query) if revision}

    def entry(self, run_id: str) -> HistoryEntry | None:
        """What is known of one run."""
        query = select(*_ENTRY).where(runs.c.run_id == run_id)
        with self.transaction() as connection:
            return next(iter(_entries(connection, connection.execute(query).mappings())), None)

    def measured_runs(self, run_ids: Sequence[str]) -> dict[str, MeasuredRun]:
        """Those of the runs that the history has, by `run_id`."""
        found = {}
        with self.transaction() as connection:
            for some in in_parts(run_ids):
                query = (
                    select(*_ENTRY, series.c.device, _DEVICE_NAME)
                    .join_from(runs, series, series.c.key == runs.c.series)
                    .outerjoin(records, records.c.run == runs.c.id)
                    .where(runs.c.run_id.in_(some))
                )
                rows = connection.execute(query).mappings().all()
                for row, entry in zip(rows, _entries(connection, rows), strict=True):
                    name = row["device_name"] or ""
                    found[entry.run_id] = MeasuredRun(entry, row["device"], name)
        return found

    def entries_before(
        self, run_ids: Sequence[str], limit: int, *, fit: bool = False
    ) -> dict[str, list[HistoryEntry]]:
        """What came before runs in their series: a few statements, however many series there are.

        Args:
            run_ids: Of a night; of each series, the runs before the first of these are wanted.
            limit: The latest so many of each series, of which runs of the same second as the first
                are some.
            fit: As `Filter.fit`.

        Returns:
            By key of the series, the earliest first.
        """
        found: dict[str, list[HistoryEntry]] = {}
        own = set(run_ids)
        with self.transaction() as connection:
            for some in in_parts(run_ids):
                first = (
                    select(runs.c.series, func.min(runs.c.started_at).label("started_at"))
                    .where(runs.c.run_id.in_(some))
                    .group_by(runs.c.series)
                    .subquery()
                )
                order = (runs.c.started_at.desc(), runs.c.id.desc())
                place = func.row_number().over(partition_by=runs.c.series, order_by=order)
                ranked = (
                    select(runs.c.id, place.label("place"))
                    .join(first, first.c.series == runs.c.series)
                    .where(runs.c.started_at <= first.c.started_at)
                    .where(*_conditions(Filter(fit=fit)))
                    .subquery()
                )
                wanted = select(ranked.c.id).where(ranked.c.place <= limit)
                query = select(*_ENTRY).where(runs.c.id.in_(wanted))
                rows = connection.execute(query.order_by(runs.c.started_at, runs.c.id)).mappings()
                # Runs of one series may be in two parts, of which the first has the first of them.
                known = set(found)
                for entry in _entries(connection, rows, wanted):
                    if entry.run_id not in own and entry.series not in known:
                        found.setdefault(entry.series, []).append(entry)
        return found

    def ids(self, beginning: str, limit: int = 10) -> list[str]:
        """The ids of runs that begin, or end, like this; the latest first."""
        names = runs.c.run_id
        query = (
            select(names)
            .where(
                names.startswith(beginning, autoescape=True)
                | names.endswith(beginning, autoescape=True)
            )
            .order_by(runs.c.started_at.desc(), runs.c.id.desc())
            .limit(limit)
        )
        with self.transaction() as connection:
            return list(connection.scalars(query))

    def content(self, run_id: str) -> dict[str, Any] | None:
        """A whole record, as `etdeploy.bench.records.stored` reads it."""
        query = (
            select(records.c.record)
            .join_from(records, runs, records.c.run == runs.c.id)
            .where(runs.c.run_id == run_id)
        )
        with self.transaction() as connection:
            return connection.scalar(query)

    def contents(self, wanted: Filter) -> Iterator[dict[str, Any]]:
        """Every whole record, the earliest first."""
        query = _joined(
            select(records.c.record).join_from(records, runs, records.c.run == runs.c.id), wanted
        ).order_by(runs.c.started_at, runs.c.id)
        with self.transaction() as connection:
            yield from connection.execution_options(yield_per=100).scalars(query)

    def count(self) -> int:
        """How many runs there are."""
        with self.transaction() as connection:
            return connection.scalar(select(func.count()).select_from(runs)) or 0

    def judge(self, run_ids: Sequence[str], judgement: Judgement) -> None:
        """Notes what a check found of runs."""
        change = update(runs).values(judgement=str(judgement))
        with self.transaction(writes=True) as connection:
            for some in in_parts(run_ids):
                connection.execute(change.where(runs.c.run_id.in_(some)))

    def remove(self, run_ids: Sequence[str]) -> int:
        """Removes runs, and returns how many there were."""
        with self.transaction(writes=True) as connection:
            return sum(
                connection.execute(delete(runs).where(runs.c.run_id.in_(some))).rowcount
                for some in in_parts(run_ids)
            )

    @contextmanager
    def transaction(self, *, writes: bool = False) -> Iterator[Connection]:
        """A transaction, for the functions of this room's other modules; undone by an error.

        Raises:
            StoreError: The history cannot be used.
            BuildError: Its disk is full.
        """
        with (
            explain_errors(self.place),
            self._engine.connect().execution_options(**{WRITES: writes}) as connection,
            connection.begin(),
        ):
            yield connection


def add_record(connection: Connection, record: RunRecord) -> bool:
    """Keeps a record; False if one of this `run_id` is there already, which is left alone."""
    entry, of = entry_from(record)
    known = select(runs.c.id).where(runs.c.run_id == entry.run_id)
    if connection.scalar(known):
        return False
    # Another process may keep it at this moment: then the block of the insert is undone.
    try:
        with connection.begin_nested():
            _insert(connection, entry, of, record)
    except IntegrityError:
        if not connection.scalar(known):
            raise
        return False
    return True


@contextmanager
def open_store(place: HistoryLocation, *, read_only: bool = False) -> Iterator[Store]:
    """Opens a history, and makes it or brings it to this release's tables where necessary.

    Args:
        place: Where it is.
        read_only: Whether nothing will be written; a history on a read-only disk can then be read.

    Raises:
        StoreError: It cannot be used, another etdeploy wrote it, or its file is something else.
        BuildError: Its disk is full.
    """
    with explain_errors(place):
        if place.file:
            _require_file(place.file)
            if not read_only:
                place.file.parent.mkdir(parents=True, exist_ok=True)
        engine = create_store_engine(place, read_only=read_only)
    try:
        with explain_errors(place):
            revision = revision_of(engine, place)
            if revision != REVISION:
                require_known(revision, place)
                _bring_up(place)
        yield Store(engine, place)
    finally:
        engine.dispose()


def _require_file(file: Path) -> None:
    """Refuses a folder or a device, beside which a lock would otherwise be left."""
    if file.exists() and (what := not_regular(file)):
        raise StoreError(f"a history needs a file, and this is {what}", place=str(file))


def _bring_up(place: HistoryLocation) -> None:
    engine = create_store_engine(place)
    try:
        migrate(engine, place)
    finally:
        engine.dispose()


def _insert(connection: Connection, entry: HistoryEntry, of: Series, record: RunRecord) -> None:
    if not connection.scalar(select(series.c.key).where(series.c.key == entry.series)):
        _add_series(connection, of)
    values = {name: getattr(entry, name) for name in _COLUMNS}
    done = connection.execute(insert(runs).values(values))
    [key] = done.inserted_primary_key or (None,)
    numbers = [{"run": key, "name": name, "value": value} for name, value in entry.metrics.items()]
    if numbers:
        connection.execute(insert(metrics), numbers)
    # Not model_dump, which would leave numbers that JSON does not have.
    content = json.loads(record.model_dump_json())
    connection.execute(insert(records).values(run=key, record=content))


def _add_series(connection: Connection, of: Series) -> None:
    try:
        with connection.begin_nested():
            connection.execute(
                insert(series).values(
                    key=of.key,
                    recipe=of.recipe,
                    device=of.device.label,
                    label=of.label,
                    content=of.model_dump(mode="json"),
                )
            )
    except IntegrityError:
        return  # another process was faster


@lru_cache(maxsize=256)
def _parsed(text: str) -> dict[str, str]:
    return dict(json.loads(text))


def _entries(
    connection: Connection, found: Iterable[RowMapping], ids: Select[Any] | None = None
) -> list[HistoryEntry]:
    """The entries of rows; `ids` selects the same runs where these are many."""
    entries = {
        row["id"]: HistoryEntry(
            **{name: row[name] for name in _COLUMNS if name not in ("judgement", "versions")},
            versions=_parsed(row["versions"]),
            metrics={},
            judgement=Judgement(row["judgement"]) if row["judgement"] else None,
        )
        for row in found
    }
    for some in in_parts(list(entries)) if ids is None else [ids]:
        for run, name, value in connection.execute(select(metrics).where(metrics.c.run.in_(some))):
            if run in entries:  # else another process has added the run since
                entries[run].metrics[name] = value
    return list(entries.values())


def matching_runs(wanted: Filter) -> Select[Any]:
    """Selects the ids of such runs."""
    return _joined(select(runs.c.id), wanted)


def _joined(query: Select[Any], wanted: Filter) -> Select[Any]:
    if _of_series(wanted):
        query = query.join(series, series.c.key == runs.c.series).where(*_of_series(wanted))
    return query.where(*_conditions(wanted))


def _of_series(wanted: Filter) -> list[Any]:
    conditions = []
    if wanted.recipe is not None:
        conditions.append(series.c.recipe == wanted.recipe)
    if wanted.device is not None:
        conditions.append(series.c.device.icontains(wanted.device, autoescape=True))
    return conditions


def _conditions(wanted: Filter) -> list[Any]:
    conditions = []
    if wanted.since is not None:
        conditions.append(runs.c.started_at >= wanted.since)
    if wanted.until is not None:
        conditions.append(runs.c.started_at <= wanted.until)
    if wanted.fit:
        conditions += [runs.c.disturbed == "", ~runs.c.simulated, runs.c.outputs_ok.is_not(False)]
    if wanted.series is not None:
        whole = len(wanted.series) >= KEY_LENGTH  # an index finds only a whole key
        column = runs.c.series
        conditions.append(
            column == wanted.series if whole else column.startswith(wanted.series, autoescape=True)
        )
    return conditions


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
