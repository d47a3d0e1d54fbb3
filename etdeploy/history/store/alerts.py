"""Alerts in the database."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import insert, select, update
from sqlalchemy.engine import Connection

from etdeploy.history.alerts import Alert
from etdeploy.history.store.tables import alerts, in_parts


def stored_alerts(
    connection: Connection, farm: str | None = None, *, writes: bool = False
) -> list[Alert]:
    """Every alert, the latest first; of one farm where it is named.

    With `writes`, no other transaction changes one until this one ends.
    """
    query = select(alerts.c.id, alerts.c.content).order_by(alerts.c.id.desc())
    if farm is not None:
        query = query.where(alerts.c.farm == farm)
    if writes and connection.dialect.name == "postgresql":
        query = query.with_for_update()
    return [
        Alert.model_validate({**row.content, "id": row.id}) for row in connection.execute(query)
    ]


def alerts_of_series(connection: Connection, series: Sequence[str]) -> dict[str, list[Alert]]:
    """The alerts of each series, the latest first."""
    found: dict[str, list[Alert]] = {}
    keys = sorted({each for each in series if each})
    for some in in_parts(keys):
        query = (
            select(alerts.c.id, alerts.c.content)
            .where(alerts.c.series.in_(some))
            .order_by(alerts.c.id.desc())
        )
        for row in connection.execute(query):
            alert = Alert.model_validate({**row.content, "id": row.id})
            found.setdefault(alert.series, []).append(alert)
    return found


def save_alert(connection: Connection, alert: Alert) -> Alert:
    """Stores an alert, a new one with the next id."""
    values = {name: getattr(alert, name) for name in ("farm", "series", "metric", "night")}
    values |= {"state": str(alert.state), "content": alert.model_dump(mode="json")}
    if alert.id:
        connection.execute(update(alerts).where(alerts.c.id == alert.id).values(**values))
        return alert
    done = connection.execute(insert(alerts).values(**values))
    [key] = done.inserted_primary_key or (0,)
    return alert.model_copy(update={"id": int(key)})


def find_alert(connection: Connection, number: int, *, writes: bool = False) -> Alert | None:
    """The alert with an id; with `writes`, no other transaction changes it until this one ends."""
    query = select(alerts.c.content).where(alerts.c.id == number)
    if writes and connection.dialect.name == "postgresql":
        query = query.with_for_update()
    content = connection.scalar(query)
    return Alert.model_validate({**content, "id": number}) if content else None
