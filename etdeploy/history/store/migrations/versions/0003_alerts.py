"""Alerts of farms."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Makes the table of alerts."""
    op.create_table(
        "etdeploy_alerts",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("farm", sa.Text, nullable=False),
        sa.Column("series", sa.String(16), nullable=False),
        sa.Column("metric", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("night", sa.Text, nullable=False),
        sa.Column("content", sa.JSON().with_variant(JSONB(), "postgresql"), nullable=False),
    )
    op.create_index("etdeploy_alerts_by_state", "etdeploy_alerts", ["farm", "state"])
    op.create_index("etdeploy_alerts_by_series", "etdeploy_alerts", ["series", "metric"])
