"""Who runs a farm: one coordinator at a time, over all hosts."""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import delete, func, insert, select, update
from sqlalchemy.engine import Connection

from etdeploy.history.nights import Coordinator
from etdeploy.history.store.clock import now_of, text_of
from etdeploy.history.store.tables import coordinators

STALE_S = 60.0
"""A coordinator that has said nothing for so long, by the database's clock, is gone."""
# Any number; while a transaction holds it, no other one takes a farm.
_ADVISORY_LOCK = 0x6574_6661


def take(connection: Connection, farm: str, mine: Coordinator, *, anew: bool) -> Coordinator | None:
    """Takes a farm, or says that its coordinator still lives.

    Args:
        connection: In a transaction that writes.
        farm: Its name.
        mine: Who asks.
        anew: Whether also from a coordinator that is gone; one that has been paused must not, for
            it does not know what the other has done.

    Returns:
        Who has it instead; None if it is taken.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(select(func.pg_advisory_xact_lock(_ADVISORY_LOCK)))
    now = now_of(connection)
    row = connection.execute(
        select(coordinators).where(coordinators.c.farm == farm)
    ).mappings().one_or_none()  # fmt: skip
    if row and row["token"] != mine.token:
        stale = now - datetime.fromisoformat(row["beat_at"]) > timedelta(seconds=STALE_S)
        if not (anew and stale):
            return Coordinator(**{name: row[name] for name in Coordinator.model_fields})
    values = mine.model_dump() | {"beat_at": text_of(now)}
    if row:
        connection.execute(update(coordinators).where(coordinators.c.farm == farm).values(values))
    else:
        connection.execute(insert(coordinators).values(farm=farm, **values))
    return None


def holder(connection: Connection, farm: str) -> Coordinator | None:
    """Who has a farm; it keeps it until the transaction ends. None for nobody."""
    query = select(coordinators).where(coordinators.c.farm == farm).with_for_update()
    row = connection.execute(query).mappings().one_or_none()
    return Coordinator(**{name: row[name] for name in Coordinator.model_fields}) if row else None


def is_run(connection: Connection, farm: str) -> bool:
    """Whether a coordinator has a farm, and has said so lately."""
    query = select(coordinators.c.beat_at).where(coordinators.c.farm == farm)
    beat_at = connection.execute(query).scalar_one_or_none()
    if beat_at is None:
        return False
    return now_of(connection) - datetime.fromisoformat(beat_at) <= timedelta(seconds=STALE_S)


def give_back(connection: Connection, farm: str, token: str) -> None:
    """Lets another coordinator have the farm at once."""
    mine = (coordinators.c.farm == farm, coordinators.c.token == token)
    connection.execute(delete(coordinators).where(*mine))
