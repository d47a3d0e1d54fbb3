"""Deletes old runs, records and nights; what alerts and baselines refer to stays."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any

from sqlalchemy import Column, Select, delete, func, select, union
from sqlalchemy.engine import Connection

from etdeploy.core.values import Value
from etdeploy.history.location import HistoryLocation
from etdeploy.history.store.store import Filter, matching_runs
from etdeploy.history.store.tables import alerts, nights, records, runs, series

# Of a series that is still measured: 60 nights of up to five runs judge the next one.
_BASELINE_RUNS = 300


class Pruned(Value):
    """What was, or would be, deleted.

    Attributes:
        runs: With their numbers and records.
        records: Of runs whose numbers stay.
        nights: Plans and attempts of farms.
        referenced: Older runs that stay since alerts or baselines refer to them.
    """

    runs: int = 0
    records: int = 0
    nights: int = 0
    referenced: int = 0


def prune(
    connection: Connection,
    wanted: Filter,
    *,
    before: str | None = None,
    records_before: str | None = None,
    dry_run: bool = False,
) -> Pruned:
    """Delete what is older.

    Args:
        connection: In a transaction that writes, unless `dry_run`.
        wanted: Whose runs; nights are deleted only where it has no condition.
        before: Runs and nights that started before, in UTC; None keeps all.
        records_before: Records of runs that started before; None keeps all.
        dry_run: Count, and delete nothing.
    """
    of_alerts = runs.c.run_id.in_(_runs_of_alerts())
    found = {"runs": 0, "records": 0, "nights": 0, "referenced": 0}
    remaining = matching_runs(wanted)
    if before is not None:
        old = matching_runs(wanted).where(runs.c.started_at < before)
        measured = select(runs.c.series).where(runs.c.started_at >= before)
        stays = of_alerts | runs.c.id.in_(_latest_runs(_BASELINE_RUNS, measured))
        found["referenced"] = _count(connection, old.where(stays))
        found["runs"] = _delete(connection, runs.c.id, old.where(~stays), dry_run)
        remaining = remaining.where((runs.c.started_at >= before) | stays)
        if wanted == Filter():
            ended = nights.c.ended_at.is_not(None)
            old_nights = select(nights.c.id).where(nights.c.started_at < before, ended)
            found["nights"] = _delete(connection, nights.c.id, old_nights, dry_run)
        if not dry_run:
            connection.execute(delete(series).where(series.c.key.not_in(select(runs.c.series))))
    if records_before is not None:
        stays = of_alerts | runs.c.id.in_(_latest_runs(1))
        old = remaining.where(runs.c.started_at < records_before, ~stays)
        found["records"] = _delete(connection, records.c.run, old, dry_run)
    return Pruned(**found)


def _runs_of_alerts() -> Any:
    first, last = (
        select(alerts.c.content[name].as_string()) for name in ("before_run", "first_bad_run")
    )
    return union(first, last)


def _latest_runs(count: int, keys: Select[Any] | None = None) -> Select[Any]:
    """The latest so many runs of each series, or of each of these."""
    order = (runs.c.started_at.desc(), runs.c.id.desc())
    place = func.row_number().over(partition_by=runs.c.series, order_by=order).label("place")
    ranked = select(runs.c.id, place)
    if keys is not None:
        ranked = ranked.where(runs.c.series.in_(keys))
    of_series = ranked.subquery()
    return select(of_series.c.id).where(of_series.c.place <= count)


def _count(connection: Connection, query: Select[Any]) -> int:
    return connection.scalar(select(func.count()).select_from(query.subquery())) or 0


def _delete(connection: Connection, key: Column[Any], ids: Select[Any], dry_run: bool) -> int:
    if dry_run:
        return _count(connection, select(key).where(key.in_(ids)))
    return connection.execute(delete(key.table).where(key.in_(ids))).rowcount


def compact(place: HistoryLocation) -> str:
    """Give the space of what was deleted back to the disk; why it cannot, or nothing.

    A server does so by itself.
    """
    if place.file is None:
        return ""
    try:
        with closing(sqlite3.connect(place.file, timeout=5)) as connection:
            connection.execute("VACUUM")
    except sqlite3.OperationalError as error:
        return str(error)
    return ""
