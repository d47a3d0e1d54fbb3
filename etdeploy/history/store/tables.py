"""The history's tables, as the newest migration leaves them.

Every change here is a migration in migrations/versions/ and another REVISION; a test compares both.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import (
    JSON,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
)
from sqlalchemy.dialects.postgresql import JSONB

REVISION = "0004"
# Not alembic's own name for it: a database of PostgreSQL may have other users.
VERSION_TABLE = "etdeploy_history"
JSON_VALUE = JSON().with_variant(JSONB(), "postgresql")
JSON_OR_NULL = JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")
# That a statement has: SQLite takes 32,766, releases before 3.32 take 999; PostgreSQL takes 65,535.
MOST_VALUES = 10_000 if sqlite3.sqlite_version_info >= (3, 32) else 500
metadata = MetaData()


def in_parts(values: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """As many of the values at a time as a statement takes."""
    for start in range(0, len(values), MOST_VALUES):
        yield values[start : start + MOST_VALUES]


series = Table(
    "etdeploy_series",
    metadata,
    Column("key", String(16), primary_key=True),
    Column("recipe", Text, nullable=False),
    Column("device", Text, nullable=False),
    Column("label", Text, nullable=False),
    Column("content", JSON_VALUE, nullable=False),
)
runs = Table(
    "etdeploy_runs",
    metadata,
    # The order in which runs were kept, for those of the same second.
    Column("id", Integer, primary_key=True),
    Column("run_id", Text, nullable=False, unique=True),
    Column("series", String(16), ForeignKey(series.c.key), nullable=False),
    Column("started_at", Text, nullable=False),
    Column("program", Text, nullable=False),
    Column("versions", JSON_VALUE, nullable=False),
    Column("git_revision", Text),
    Column("git_dirty", Boolean),
    Column("disturbed", Text, nullable=False),
    Column("simulated", Boolean, nullable=False),
    Column("outputs_ok", Boolean),
    Column("spread_percent", Float),
    Column("starts", Integer, nullable=False),
    Column("judgement", Text),
    Index("etdeploy_runs_by_series", "series", "started_at", "id"),
    Index("etdeploy_runs_by_time", "started_at", "id"),
)
metrics = Table(
    "etdeploy_metrics",
    metadata,
    Column("run", Integer, ForeignKey(runs.c.id, ondelete="CASCADE"), primary_key=True),
    Column("name", Text, primary_key=True),
    Column("value", Float, nullable=False),
    sqlite_with_rowid=False,
)
# Apart from the runs, so that a list of these does not read whole records.
records = Table(
    "etdeploy_records",
    metadata,
    Column("run", Integer, ForeignKey(runs.c.id, ondelete="CASCADE"), primary_key=True),
    Column("record", JSON_VALUE, nullable=False),
)
# Of a farm. Times are UTC in ISO 8601, as those of runs.
nights = Table(
    "etdeploy_nights",
    metadata,
    Column("id", Text, primary_key=True),
    Column("farm", Text, nullable=False),
    # Of what the farm.yaml says: a night is gone on with only while that stays the same.
    Column("digest", Text, nullable=False),
    Column("started_at", Text, nullable=False),
    Column("ended_at", Text),
    # How it ended: finished, abandoned.
    Column("outcome", Text),
    Index("etdeploy_nights_by_farm", "farm", "started_at"),
)
visits = Table(
    "etdeploy_visits",
    metadata,
    Column("id", Text, primary_key=True),
    Column("night", Text, ForeignKey(nights.c.id, ondelete="CASCADE"), nullable=False),
    # Its place in the night's plan.
    Column("number", Integer, nullable=False),
    Column("content", JSON_VALUE, nullable=False),
    Column("standing", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Index("etdeploy_visits_by_night", "night", "number"),
)
attempts = Table(
    "etdeploy_attempts",
    metadata,
    Column("visit", Text, ForeignKey(visits.c.id, ondelete="CASCADE"), primary_key=True),
    # Its place among those of the visit.
    Column("place", Integer, primary_key=True),
    Column("attempt", Integer, nullable=False),
    # Of its beginning, so that this is noted once however often it is told.
    Column("token", Text, nullable=False),
    Column("identity", Text, nullable=False),
    Column("device", Text, nullable=False),
    Column("host", Text, nullable=False),
    Column("started_at", Text, nullable=False),
    # Null while it is under way; so are those below.
    Column("ended_at", Text),
    Column("fate", Text),
    Column("run_id", Text),
    Column("content", JSON_OR_NULL),
    # Whether it is the one attempt of its visit that counts.
    Column("counts", Boolean, nullable=False),
    Index("etdeploy_attempts_by_device", "identity", "started_at"),
)
# Who runs a farm now, so that nobody else does.
coordinators = Table(
    "etdeploy_coordinators",
    metadata,
    Column("farm", Text, primary_key=True),
    Column("token", Text, nullable=False),
    Column("who", Text, nullable=False),
    Column("process", Integer, nullable=False),
    Column("since", Text, nullable=False),
    # By the database's clock: other hosts may have another time.
    Column("beat_at", Text, nullable=False),
)
reservations = Table(
    "etdeploy_reservations",
    metadata,
    Column("identity", Text, primary_key=True),
    # Only of a device that is this host itself, which has the same identity everywhere; else empty.
    Column("host", Text, primary_key=True),
    Column("device", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("since", Text, nullable=False),
    # By the database's clock.
    Column("until", Text, nullable=False),
    Column("note", Text, nullable=False),
)
quarantine = Table(
    "etdeploy_quarantine",
    metadata,
    Column("identity", Text, primary_key=True),
    Column("host", Text, primary_key=True),
    Column("device", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("since", Text, nullable=False),
    # Who quarantined it; not `by`, which is a reserved word in SQL.
    Column("set_by", Text, nullable=False),
)
# A number that became worse, until it returns or a person closes it.
alerts = Table(
    "etdeploy_alerts",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("farm", Text, nullable=False),
    Column("series", String(16), nullable=False),
    Column("metric", Text, nullable=False),
    # open, acknowledged, accepted, fixed, false alarm
    Column("state", Text, nullable=False),
    # The night that found it, and everything else that is known of it.
    Column("night", Text, nullable=False),
    Column("content", JSON_VALUE, nullable=False),
    Index("etdeploy_alerts_by_state", "farm", "state"),
    Index("etdeploy_alerts_by_series", "series", "metric"),
)
