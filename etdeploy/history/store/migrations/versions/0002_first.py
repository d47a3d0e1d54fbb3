"""The first tables: runs, nights of farms, reserved devices and those set aside.

Its number stands for the tables. 0001, which had those of runs alone, was in no release.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0002"
down_revision = None
branch_labels = None
depends_on = None

_JSON = sa.JSON().with_variant(JSONB(), "postgresql")


def upgrade() -> None:
    """Makes the first tables."""
    _runs()
    _nights()
    _shelf()


def _runs() -> None:
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


def _nights() -> None:
    op.create_table(
        "etdeploy_nights",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("farm", sa.Text, nullable=False),
        sa.Column("digest", sa.Text, nullable=False),
        sa.Column("started_at", sa.Text, nullable=False),
        sa.Column("ended_at", sa.Text),
        sa.Column("outcome", sa.Text),
    )
    op.create_index("etdeploy_nights_by_farm", "etdeploy_nights", ["farm", "started_at"])
    night = sa.ForeignKey("etdeploy_nights.id", ondelete="CASCADE")
    op.create_table(
        "etdeploy_visits",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("night", sa.Text, night, nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("content", _JSON, nullable=False),
        sa.Column("standing", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
    )
    op.create_index("etdeploy_visits_by_night", "etdeploy_visits", ["night", "number"])
    visit = sa.ForeignKey("etdeploy_visits.id", ondelete="CASCADE")
    op.create_table(
        "etdeploy_attempts",
        sa.Column("visit", sa.Text, visit, primary_key=True),
        sa.Column("place", sa.Integer, primary_key=True),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("token", sa.Text, nullable=False),
        sa.Column("identity", sa.Text, nullable=False),
        sa.Column("device", sa.Text, nullable=False),
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("started_at", sa.Text, nullable=False),
        sa.Column("ended_at", sa.Text),
        sa.Column("fate", sa.Text),
        sa.Column("run_id", sa.Text),
        sa.Column("content", _JSON),
        sa.Column("counts", sa.Boolean, nullable=False),
    )
    op.create_index("etdeploy_attempts_by_device", "etdeploy_attempts", ["identity", "started_at"])
    op.create_table(
        "etdeploy_coordinators",
        sa.Column("farm", sa.Text, primary_key=True),
        sa.Column("token", sa.Text, nullable=False),
        sa.Column("who", sa.Text, nullable=False),
        sa.Column("process", sa.Integer, nullable=False),
        sa.Column("since", sa.Text, nullable=False),
        sa.Column("beat_at", sa.Text, nullable=False),
    )


def _shelf() -> None:
    op.create_table(
        "etdeploy_reservations",
        sa.Column("identity", sa.Text, primary_key=True),
        sa.Column("host", sa.Text, primary_key=True),
        sa.Column("device", sa.Text, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("since", sa.Text, nullable=False),
        sa.Column("until", sa.Text, nullable=False),
        sa.Column("note", sa.Text, nullable=False),
    )
    op.create_table(
        "etdeploy_quarantine",
        sa.Column("identity", sa.Text, primary_key=True),
        sa.Column("host", sa.Text, primary_key=True),
        sa.Column("device", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("since", sa.Text, nullable=False),
        sa.Column("set_by", sa.Text, nullable=False),
    )
