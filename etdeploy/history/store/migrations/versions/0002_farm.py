"""Nights of farms with their visits and attempts; reserved devices, and those set aside."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_JSON = sa.JSON().with_variant(JSONB(), "postgresql")


def upgrade() -> None:
    """Makes the tables of farms."""
    _nights()
    _shelf()


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
