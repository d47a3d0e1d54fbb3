"""Runs with their series, numbers and whole records."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_JSON = sa.JSON().with_variant(JSONB(), "postgresql")


def upgrade() -> None:
    """Makes the first tables."""
    op.create_table(
        "etdeploy_series",
        sa.Column("key", sa.String(16), primary_key=True),
        sa.Column("recipe", sa.Text, nullable=False),
        sa.Column("device", sa.Text, nullable=False),
        sa.Column("label", sa.Text, nullable=False),
        sa.Column("content", _JSON, nullable=False),
    )
    op.create_table(
        "etdeploy_runs",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("run_id", sa.Text, nullable=False, unique=True),
        sa.Column("series", sa.String(16), sa.ForeignKey("etdeploy_series.key"), nullable=False),
        sa.Column("started_at", sa.Text, nullable=False),
        sa.Column("program", sa.Text, nullable=False),
        sa.Column("versions", _JSON, nullable=False),
        sa.Column("git_revision", sa.Text),
        sa.Column("git_dirty", sa.Boolean),
        sa.Column("disturbed", sa.Text, nullable=False),
        sa.Column("simulated", sa.Boolean, nullable=False),
        sa.Column("outputs_ok", sa.Boolean),
        sa.Column("spread_percent", sa.Float),
        sa.Column("starts", sa.Integer, nullable=False),
        sa.Column("judgement", sa.Text),
    )
    op.create_index("etdeploy_runs_by_series", "etdeploy_runs", ["series", "started_at", "id"])
    op.create_index("etdeploy_runs_by_time", "etdeploy_runs", ["started_at", "id"])
    run = ("run", sa.Integer, sa.ForeignKey("etdeploy_runs.id", ondelete="CASCADE"))
    op.create_table(
        "etdeploy_metrics",
        sa.Column(*run, primary_key=True),
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("value", sa.Float, nullable=False),
        sqlite_with_rowid=False,
    )
    run = ("run", sa.Integer, sa.ForeignKey("etdeploy_runs.id", ondelete="CASCADE"))
    op.create_table(
        "etdeploy_records",
        sa.Column(*run, primary_key=True),
        sa.Column("record", _JSON, nullable=False),
    )
