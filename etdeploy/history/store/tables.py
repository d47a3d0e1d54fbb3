"""The history's tables, as the newest migration leaves them.

Every change here is a migration in migrations/versions/ and another REVISION; a test compares both.
"""

from __future__ import annotations

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

REVISION = "0001"
# Not alembic's own name for it: a database of PostgreSQL may have other users.
VERSION_TABLE = "etdeploy_history"
JSON_VALUE = JSON().with_variant(JSONB(), "postgresql")
metadata = MetaData()

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
