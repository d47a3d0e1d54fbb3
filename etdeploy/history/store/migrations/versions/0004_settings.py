"""Series are divided by what their recipes set."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from alembic import op

from etdeploy.history.series import Series, settings_from
from etdeploy.history.store.tables import alerts, records, runs, series

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_BATCH = 1000


def upgrade() -> None:
    """Gives every run the key of its series anew, and every alert that of its first bad run."""
    connection = op.get_bind()
    known = {
        key: Series.model_validate(content)
        for key, content in connection.execute(sa.select(series.c.key, series.c.content))
    }
    move = sa.update(runs).where(runs.c.id == sa.bindparam("run"))
    for changes in _changes(connection, known):
        for new in {key: of for _, key, of in changes if key not in known}.values():
            known[new.key] = new
            connection.execute(sa.insert(series).values(_row(new)))
        if changes:
            rows = [{"run": run, "key": key} for run, key, _ in changes]
            connection.execute(move.values(series=sa.bindparam("key")), rows)
    _move_alerts(connection)
    used = sa.select(runs.c.series)
    connection.execute(sa.delete(series).where(series.c.key.not_in(used)))


def _changes(
    connection: sa.Connection, known: dict[str, Series]
) -> Iterator[list[tuple[int, str, Series]]]:
    """Runs that belong to another series, by batches: the run, the key, the series."""
    content = records.c.record["recipe"]["content"]
    last = 0
    while True:
        query = (
            sa.select(runs.c.id, runs.c.series, content)
            .join_from(runs, records, records.c.run == runs.c.id)
            .where(runs.c.id > last)
            .order_by(runs.c.id)
            .limit(_BATCH)
        )
        rows = connection.execute(query).all()
        if not rows:
            return
        last = rows[-1][0]
        found = []
        for run, key, recipe in rows:
            of = known[key]
            if settings := settings_from(recipe or {}, app=of.app):
                new = of.model_copy(update={"settings": settings})
                found.append((run, new.key, new))
        yield found


def _row(of: Series) -> dict[str, Any]:
    return {
        "key": of.key,
        "recipe": of.recipe,
        "device": of.device.label,
        "label": of.label,
        "content": of.model_dump(mode="json"),
    }


def _move_alerts(connection: sa.Connection) -> None:
    stored = connection.execute(sa.select(alerts.c.id, alerts.c.series, alerts.c.content)).all()
    for number, old, content in stored:
        run = content.get("first_bad_run", "")
        new = connection.scalar(sa.select(runs.c.series).where(runs.c.run_id == run))
        if new and new != old:
            values = {"series": new, "content": {**content, "series": new}}
            connection.execute(sa.update(alerts).where(alerts.c.id == number).values(values))
