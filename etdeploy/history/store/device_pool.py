"""Reservations and quarantine in the database."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Table, delete, func, insert, select
from sqlalchemy.engine import Connection, RowMapping

from etdeploy.history.nights import KnownDevice, Quarantined, Reservation, host_of, locked_as
from etdeploy.history.store.errors import database_now, utc_text
from etdeploy.history.store.tables import (
    attempts,
    nights,
    quarantine,
    reservations,
    series,
    visits,
)

# Any number; while a transaction holds it, no other one changes the shelf.
_ADVISORY_LOCK = 0x6574_7368


def active_reservations(connection: Connection) -> list[Reservation]:
    """Those that have not ended."""
    query = (
        select(reservations)
        .where(reservations.c.until > utc_text(database_now(connection)))
        .order_by(reservations.c.until, reservations.c.device)
    )
    return [reservation_of(row) for row in connection.execute(query).mappings()]


def reserve(
    connection: Connection, device: KnownDevice, owner: str, for_s: float, note: str
) -> Reservation:
    """Notes a reservation in the place of every other one of the device, and of ended ones."""
    now = database_now(connection)
    made = Reservation(
        identity=device.identity, device=device.device, host=device.host, owner=owner,
        until=now + timedelta(seconds=for_s), note=note,
    )  # fmt: skip
    connection.execute(delete(reservations).where(reservations.c.until <= utc_text(now)))
    _remove(connection, reservations, device)
    values = made.model_dump() | {"since": utc_text(now), "until": utc_text(made.until)}
    connection.execute(insert(reservations).values(values))
    return made


def release(connection: Connection, device: KnownDevice) -> None:
    """Ends a device's reservation."""
    _remove(connection, reservations, device)


def all_quarantined(connection: Connection) -> list[Quarantined]:
    """Every device that is quarantined, the earliest first."""
    query = select(quarantine).order_by(quarantine.c.since, quarantine.c.device)
    return [
        Quarantined(
            identity=row["identity"], device=row["device"], host=row["host"],
            reason=row["reason"], since=datetime.fromisoformat(row["since"]), by=row["set_by"],
        )
        for row in connection.execute(query).mappings()
    ]  # fmt: skip


def quarantine_device(
    connection: Connection, device: KnownDevice, reason: str, by: str
) -> Quarantined:
    """Quarantines a device, with another reason than before if it was."""
    made = Quarantined(
        identity=device.identity, device=device.device, host=device.host,
        reason=reason, since=database_now(connection), by=by,
    )  # fmt: skip
    _remove(connection, quarantine, device)
    values = made.model_dump(exclude={"by"}) | {"since": utc_text(made.since), "set_by": by}
    connection.execute(insert(quarantine).values(values))
    return made


def take_back(connection: Connection, device: KnownDevice) -> None:
    """Ends a device's quarantine."""
    _remove(connection, quarantine, device)


def alone(connection: Connection) -> None:
    """Lets no other transaction change the shelf until this one ends, so that it may look first.

    One that writes to SQLite is alone anyway.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(select(func.pg_advisory_xact_lock(_ADVISORY_LOCK)))


def busy_in(connection: Connection, device: KnownDevice) -> str | None:
    """The farm with a night that measures the device at the moment."""
    query = (
        select(nights.c.farm, attempts.c.identity, attempts.c.host, attempts.c.device)
        .join_from(attempts, visits, attempts.c.visit == visits.c.id)
        .join(nights, visits.c.night == nights.c.id)
        .where(attempts.c.ended_at.is_(None), nights.c.ended_at.is_(None))
    )
    for farm, identity, host, name in connection.execute(query):
        if device.is_of(locked_as(identity, host), host, name):
            return str(farm)
    return None


def known_devices(connection: Connection) -> list[KnownDevice]:
    """Devices that were measured, reserved or quarantined."""
    found: dict[KnownDevice, None] = {}
    for table in (reservations, quarantine, attempts):
        query = select(table.c.identity, table.c.device, table.c.host).distinct()
        for of_night, name, host in connection.execute(query):
            identity = locked_as(of_night, host)
            found[KnownDevice(identity=identity, device=name, host=host_of(identity, host))] = None
    for content in connection.scalars(select(series.c.content)):
        known: dict[str, Any] = content.get("device", {})
        kind, name = known.get("kind"), str(known.get("name"))
        # Their identity is made of the serial number, and so is their name.
        if kind in ("android", "ios") and ":" not in name:
            found[KnownDevice(identity=f"{kind}-{name}", device=f"{kind}:{name}")] = None
    return list(found)


def reservation_of(row: Mapping[str, Any] | RowMapping) -> Reservation:
    """A row as a value."""
    names = ("identity", "device", "host", "owner", "note")
    return Reservation(
        **{name: row[name] for name in names}, until=datetime.fromisoformat(row["until"])
    )


def _remove(connection: Connection, table: Table, device: KnownDevice) -> None:
    for identity, host, name in connection.execute(
        select(table.c.identity, table.c.host, table.c.device)
    ).all():
        kept = KnownDevice(identity=identity, device=name, host=host)
        if kept.is_of(device.identity, device.host, device.device):
            this = (table.c.identity == identity, table.c.host == host)
            connection.execute(delete(table).where(*this))
