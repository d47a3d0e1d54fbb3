"""Nights, visits and attempts in the database.

Every function that writes may be called again with the same values, as after a crash.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from itertools import zip_longest
from typing import Any

from sqlalchemy import case, delete, func, insert, select, update
from sqlalchemy.engine import Connection, RowMapping

from etdeploy.core.errors import DeviceError
from etdeploy.history.nights import (
    CoordinatorProcess,
    DeviceDay,
    KeptAttempt,
    KeptNight,
    KeptVisit,
    storable,
)
from etdeploy.history.store.errors import database_now, utc_text
from etdeploy.history.store.tables import (
    MOST_VALUES,
    attempts,
    coordinators,
    nights,
    runs,
    series,
    visits,
)


def nights_of(connection: Connection, farm: str | None, limit: int) -> list[KeptNight]:
    """The latest nights of a farm, or of all; the latest first."""
    query = select(nights).order_by(nights.c.started_at.desc(), nights.c.id.desc()).limit(limit)
    if farm is not None:
        query = query.where(nights.c.farm == farm)
    return [KeptNight(**row) for row in connection.execute(query).mappings()]


def unfinished_nights(connection: Connection, farm: str) -> list[KeptNight]:
    """The nights of a farm that have not ended, the latest first."""
    query = (
        select(nights)
        .where(nights.c.farm == farm, nights.c.ended_at.is_(None))
        .order_by(nights.c.started_at.desc(), nights.c.id.desc())
    )
    return [KeptNight(**row) for row in connection.execute(query).mappings()]


def add_night(connection: Connection, night: KeptNight) -> None:
    """Adds a night, unless it is there."""
    if connection.scalar(select(nights.c.id).where(nights.c.id == night.id)) is None:
        connection.execute(insert(nights).values(night.model_dump()))


def end_night(connection: Connection, night: str, ended_at: str, outcome: str) -> None:
    """Ends a night, unless it has ended."""
    change = update(nights).where(nights.c.id == night, nights.c.ended_at.is_(None))
    connection.execute(change.values(ended_at=ended_at, outcome=outcome))


def settle_visits(
    connection: Connection, night: str, standings: Sequence[str], standing: str, reason: str
) -> None:
    """Gives all visits of a night with one of these standings another one, with the reason."""
    change = update(visits).where(
        visits.c.night == night, visits.c.standing.in_([str(each) for each in standings])
    )
    connection.execute(change.values(standing=str(standing), reason=reason))


def add_visits(connection: Connection, night: str, planned: Sequence[KeptVisit]) -> None:
    """Adds visits after those that the night has; those that are there stay as they are."""
    connection.execute(select(nights.c.id).where(nights.c.id == night).with_for_update())
    there = set(connection.scalars(select(visits.c.id).where(visits.c.night == night)))
    new = [visit for visit in planned if visit.id not in there]
    if not new:
        return
    rows = [
        storable(visit.model_dump(exclude={"attempts"})) | {"night": night, "number": number}
        for number, visit in enumerate(new, len(there))
    ]
    connection.execute(insert(visits), rows)
    for visit in new:
        for place, attempt in enumerate(visit.attempts):
            connection.execute(insert(attempts).values(_row(visit.id, place, attempt)))


def visits_of(connection: Connection, night: str) -> list[KeptVisit]:
    """All visits of a night, in the order of its plan."""
    query = select(visits).where(visits.c.night == night).order_by(visits.c.number)
    rows = connection.execute(query).mappings().all()
    made = (
        select(attempts)
        .join_from(attempts, visits, attempts.c.visit == visits.c.id)
        .where(visits.c.night == night)
        .order_by(attempts.c.visit, attempts.c.place)
    )
    by_visit: dict[str, list[RowMapping]] = {}
    for attempt in connection.execute(made).mappings():
        by_visit.setdefault(attempt["visit"], []).append(attempt)
    return [_visit(row, by_visit.get(row["id"], ())) for row in rows]


def change_visit(
    connection: Connection, visit: str, change: Callable[[KeptVisit], KeptVisit]
) -> KeptVisit | None:
    """Changes a visit, which no other transaction does at the same time.

    Args:
        connection: In a transaction that writes.
        visit: Its id.
        change: Gives it as it is to be; attempts may be changed and added, and not removed.

    Returns:
        The visit as it is now; None if there is none.
    """
    row = connection.execute(
        select(visits).where(visits.c.id == visit).with_for_update()
    ).mappings().one_or_none()  # fmt: skip
    if row is None:
        return None
    query = select(attempts).where(attempts.c.visit == visit).order_by(attempts.c.place)
    before = _visit(row, connection.execute(query).mappings())
    after = change(before)
    if (after.standing, after.reason) != (before.standing, before.reason):
        values = storable({"standing": after.standing, "reason": after.reason})
        connection.execute(update(visits).where(visits.c.id == visit).values(values))
    for place, (old, new) in enumerate(zip_longest(before.attempts, after.attempts)):
        if old is None:
            connection.execute(insert(attempts).values(_row(visit, place, new)))
        elif old != new:
            at = (attempts.c.visit == visit, attempts.c.place == place)
            connection.execute(update(attempts).where(*at).values(_row(visit, place, new)))
    return after


def _visit(row: RowMapping, made: Iterable[RowMapping]) -> KeptVisit:
    names = ("id", "content", "standing", "reason")
    return KeptVisit(
        **{name: row[name] for name in names},
        attempts=tuple(
            KeptAttempt(**{name: each[name] for name in KeptAttempt.model_fields}) for each in made
        ),
    )


def _row(visit: str, place: int, attempt: KeptAttempt) -> dict[str, Any]:
    return {**storable(attempt.model_dump()), "visit": visit, "place": place}


# Of `etdeploy.farm.model.Fate` and the kind of an error of a device.
_FATES = {"failed": "failed", "lost": "lost", "put off": "put_off"}
_QUARANTINED = "quarantined: "


def device_days(
    connection: Connection, since: str | None = None
) -> tuple[list[DeviceDay], dict[str, str]]:
    """What became of attempts, runs and visits of each device, by day, and the devices' names.

    Args:
        connection: To the database.
        since: In UTC, ISO 8601; None for everything.
    """
    begin = since or ""
    attempt_day, run_day, night_day = (
        func.substr(table.c.started_at, 1, 10).label("day") for table in (attempts, runs, nights)
    )
    kind = case((attempts.c.fate == "failed", attempts.c.content["failure"]["kind"].as_string()))
    ended = (
        select(attempts.c.identity, attempt_day, attempts.c.fate, kind.label("kind"),
               func.count().label("many"))
        .where(attempts.c.fate.is_not(None), attempts.c.started_at >= begin)
        .group_by(attempts.c.identity, attempt_day, attempts.c.fate, "kind")
    )  # fmt: skip
    odd_runs = func.sum(case((runs.c.disturbed != "", 1), else_=0))
    measured = (
        select(series.c.device, run_day, func.count().label("many"), odd_runs.label("odd"))
        .join_from(runs, series, series.c.key == runs.c.series)
        .where(~runs.c.simulated, runs.c.started_at >= begin)
        .group_by(series.c.device, run_day)
    )
    device = visits.c.content["device"].as_string()
    barred = func.max(case((visits.c.reason.startswith(_QUARANTINED), 1), else_=0))
    name = func.max(visits.c.content["name"].as_string()).label("name")
    planned = (
        select(device.label("device"), nights.c.id, night_day, barred.label("barred"), name)
        .join_from(visits, nights, nights.c.id == visits.c.night)
        .where(device.is_not(None), nights.c.started_at >= begin)
        .group_by("device", nights.c.id, night_day)
    )
    names, labels = _device_names(connection)
    days = [
        DeviceDay(device=identity, day=day, numbers={
            "attempts": many,
            **({_FATES[fate]: many} if fate in _FATES else {}),
            **({"device_failures": many} if why == DeviceError.kind else {}),
        })
        for identity, day, fate, why, many in connection.execute(ended)
    ]  # fmt: skip
    days += [
        DeviceDay(
            device=labels.get(label, label), day=day, numbers={"runs": many, "disturbed": bad}
        )
        for label, day, many, bad in connection.execute(measured)
    ]
    for identity, _, day, missed, name_in_plan in connection.execute(planned):
        numbers = {"nights": 1, "quarantined_nights": missed}
        days.append(DeviceDay(device=identity, day=day, numbers=numbers))
        # Of one that was never measured, there is nothing else.
        names.setdefault(identity, name_in_plan or identity)
    return days, names


def _device_names(connection: Connection) -> tuple[dict[str, str], dict[str, str]]:
    """Names of devices by identity, and identities by the labels of their series.

    A label that several devices share, as hosts of one kind do, identifies none of them.
    """
    last = func.max(attempts.c.run_id).label("last")
    query = select(attempts.c.identity, func.max(attempts.c.device), last).group_by(
        attempts.c.identity
    )
    rows = connection.execute(query).all()
    names = {identity: name or identity for identity, name, _ in rows}
    of_runs: dict[str, str] = {}
    ids = [run for _, _, run in rows if run]
    for start in range(0, len(ids), MOST_VALUES):
        found = (
            select(runs.c.run_id, series.c.device)
            .join_from(runs, series, series.c.key == runs.c.series)
            .where(runs.c.run_id.in_(ids[start : start + MOST_VALUES]))
        )
        of_runs |= {row.run_id: row.device for row in connection.execute(found)}
    often = Counter(of_runs.values())
    labels = {
        of_runs[run]: identity
        for identity, _, run in rows
        if run in of_runs and often[of_runs[run]] == 1
    }
    return names, labels


STALE_S = 60.0
"""A coordinator that has said nothing for so long, by the database's clock, is gone."""
# Any number; while a transaction holds it, no other one takes a farm.
_ADVISORY_LOCK = 0x6574_6661


def take_farm(
    connection: Connection, farm: str, mine: CoordinatorProcess, *, anew: bool
) -> CoordinatorProcess | None:
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
    now = database_now(connection)
    row = connection.execute(
        select(coordinators).where(coordinators.c.farm == farm)
    ).mappings().one_or_none()  # fmt: skip
    if row and row["token"] != mine.token:
        stale = now - datetime.fromisoformat(row["beat_at"]) > timedelta(seconds=STALE_S)
        if not (anew and stale):
            return _coordinator(row)
    values = mine.model_dump() | {"beat_at": utc_text(now)}
    if row:
        connection.execute(update(coordinators).where(coordinators.c.farm == farm).values(values))
    else:
        connection.execute(insert(coordinators).values(farm=farm, **values))
    return None


def farm_holder(connection: Connection, farm: str) -> CoordinatorProcess | None:
    """Who has a farm; it keeps it until the transaction ends. None for nobody."""
    query = select(coordinators).where(coordinators.c.farm == farm).with_for_update()
    row = connection.execute(query).mappings().one_or_none()
    return _coordinator(row) if row else None


def _coordinator(row: RowMapping) -> CoordinatorProcess:
    return CoordinatorProcess(**{name: row[name] for name in CoordinatorProcess.model_fields})


def is_farm_held(connection: Connection, farm: str) -> bool:
    """Whether a coordinator has a farm, and has said so lately."""
    query = select(coordinators.c.beat_at).where(coordinators.c.farm == farm)
    beat_at = connection.execute(query).scalar_one_or_none()
    if beat_at is None:
        return False
    return database_now(connection) - datetime.fromisoformat(beat_at) <= timedelta(seconds=STALE_S)


def release_farm(connection: Connection, farm: str, token: str) -> None:
    """Lets another coordinator have the farm at once."""
    mine = (coordinators.c.farm == farm, coordinators.c.token == token)
    connection.execute(delete(coordinators).where(*mine))
