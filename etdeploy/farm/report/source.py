"""Reads nights, their verdicts and what is around them from the history."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from difflib import get_close_matches
from pathlib import Path
from typing import TypeVar

from etdeploy.core.errors import UsageError
from etdeploy.device_pool import reservations
from etdeploy.farm.model import VisitState
from etdeploy.farm.night.events import open_attempts, state_of
from etdeploy.farm.report.model import NightInfo, NightReport, report_of, trends_of
from etdeploy.farm.report.pages import Dashboard
from etdeploy.farm.report.status import Around, Status, devices_of, status_of
from etdeploy.farm.spec.model import Farm
from etdeploy.farm.verdicts.night import judge_night
from etdeploy.history.location import HistoryLocation
from etdeploy.history.nights import KeptNight, Shelved

LAST = "last"
_MOST_NIGHTS = 100
_BOARD_NIGHTS = 5
_SHORTEST = 4
MOST_TRENDS = 24
"""More plots make a page that nobody scrolls through; the worst come first."""


@dataclass(frozen=True)
class NightSnapshot:
    """A night as the history has it.

    Attributes:
        night: Which.
        states: Of its visits.
        running: The device and host of each visit that is under way.
        labels: Names of devices, by identity.
    """

    night: NightInfo
    states: tuple[VisitState, ...]
    running: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Settings:
    """What a night is judged by.

    Attributes:
        farm: The farm.yaml, or its defaults.
        files: The recipes' files, by label.
    """

    farm: Farm
    files: Mapping[str, Path] = field(default_factory=dict)


def info_of(night: KeptNight) -> NightInfo:
    """A night of the history."""
    return NightInfo(
        id=night.id, farm=night.farm, started_at=night.started_at, finished_at=night.ended_at
    )


def nights_of(
    place: HistoryLocation, farm: str | None = None, limit: int = _MOST_NIGHTS
) -> list[NightInfo]:
    """The latest nights, the latest first; none where there is no history yet."""
    from etdeploy.history.store import nights
    from etdeploy.history.store.store import open_store

    if place.file and not place.file.exists():
        return []
    with open_store(place, read_only=True) as store, store.transaction() as connection:
        return [info_of(night) for night in nights.nights_of(connection, farm, limit)]


def find_night(place: HistoryLocation, text: str, farm: str | None = None) -> NightInfo:
    """The night that a person names: `last`, an id, or the end of one.

    Raises:
        UsageError: There is none, or several.
        StoreError: The history cannot be read.
    """
    known = nights_of(place, farm, 1 if text == LAST else 10 * _MOST_NIGHTS)
    if text == LAST:
        if known:
            return known[0]
        raise _none_yet(place)
    if not known:
        raise _none_yet(place)
    found = [n for n in known if n.id == text] or [
        n for n in known if len(text) >= _SHORTEST and n.id.endswith(text)
    ]
    if len(found) == 1:
        return found[0]
    near = get_close_matches(text, [night.id for night in known], 1)
    raise UsageError(
        f"{len(found)} nights have an id that ends with {text!r}"
        if found
        else f"there is no night {text!r}" + (f": did you mean {near[0]}?" if near else ""),
        place=place.shown,
        remedy="The latest are:\n" + "\n".join(night.id for night in (found or known)[:5]),
    )


def _none_yet(place: HistoryLocation) -> UsageError:
    return UsageError(
        "no night was run yet", place=place.shown, remedy="Run one: etdeploy farm run farm.yaml"
    )


def seen(place: HistoryLocation, night: NightInfo) -> NightSnapshot:
    """A night with its visits.

    Raises:
        StoreError: The history cannot be read.
    """
    from etdeploy.history.store import nights
    from etdeploy.history.store.store import open_store

    with open_store(place, read_only=True) as store, store.transaction() as connection:
        kept = nights.visits_of(connection, night.id)
    running = {
        visit.id: (attempt.identity, attempt.host)
        for visit in kept
        for attempt in open_attempts(visit)
    }
    states = tuple(map(state_of, kept))
    # As planned, for those that were never measured; then as they were called last.
    names = {s.visit.device: s.visit.name for s in states if s.visit.device and s.visit.name}
    names |= {
        attempt.identity: attempt.device
        for visit in kept
        for attempt in visit.attempts
        if attempt.device
    }
    return NightSnapshot(night, states, running, told_apart(names))


def told_apart(names: Mapping[str, str]) -> dict[str, str]:
    """Names of devices by identity; where those of several hosts are equal, with their hosts."""
    often = Counter(names.values())
    return {
        identity: f"{name}@{host}" if often[name] > 1 and (host := _host_of(identity)) else name
        for identity, name in names.items()
    }


def _host_of(identity: str) -> str:
    return identity.rpartition("@")[2] if "@" in identity else ""


def judged(
    place: HistoryLocation, night: NightSnapshot, settings: Settings, trends: int | None = None
) -> NightReport:
    """The report of a night.

    Args:
        place: The history.
        night: Which.
        settings: What it is judged by.
        trends: Of so many verdicts, the worst first, the series is read as well; None for all.

    Raises:
        StoreError: The history cannot be read.
    """
    from etdeploy.history.store.store import open_store

    with open_store(place, read_only=True) as store:
        verdicts = judge_night(store, night.night.id, night.states, settings.farm, settings.files)
        found = trends_of(store, verdicts[:trends])
    labels = dict(night.labels) | {each.identity: each.device for each in verdicts}
    aside = {
        i: each.reason
        for i, each in _shelved(night, reservations.quarantined_devices(place)).items()
    }
    return report_of(night.night, night.states, verdicts, aside, found, labels)


S = TypeVar("S", bound=Shelved)


def _shelved(night: NightSnapshot, kept: Iterable[S]) -> dict[str, S]:
    """What the shelf has of the night's devices, by their identities there."""
    shelf = tuple(kept)
    return {
        identity: each
        for identity in dict.fromkeys(i for state in night.states for i in devices_of(state))
        for each in shelf
        if each.is_of_night(identity, night.labels.get(identity, ""))
    }


def _and_others(night: NightSnapshot, kept: Sequence[S]) -> dict[str, S]:
    """The same, and what it has of devices that the night does not know."""
    own = _shelved(night, kept)
    return {**own, **{e.night_identity: e for e in kept if e not in own.values()}}


def status_now(place: HistoryLocation, farm: str | None = None) -> Status:
    """How the latest night stands.

    Raises:
        StoreError: The history cannot be read.
    """
    latest = nights_of(place, farm, 1)
    if not latest:
        return status_of(None, (), _now(), Around())
    return _status(place, seen(place, latest[0]))


def _status(place: HistoryLocation, night: NightSnapshot) -> Status:
    claims, aside = reservations.active(place), reservations.quarantined_devices(place)
    # Devices that were not measured have no names in the night.
    names = {each.night_identity: each.device for each in (*claims, *aside)}
    around = Around(
        labels={**names, **night.labels},
        reserved={
            identity: f"{each.owner} until {reservations.local(each.until)}"
            for identity, each in _and_others(night, claims).items()
        },
        quarantined={i: each.reason for i, each in _and_others(night, aside).items()},
        running=night.running,
        stopped=not _is_run(place, night.night.farm),
    )  # fmt: skip
    return status_of(night.night, night.states, _now(), around)


def _is_run(place: HistoryLocation, farm: str) -> bool:
    from etdeploy.history.store import nights
    from etdeploy.history.store.store import open_store

    with open_store(place, read_only=True) as store, store.transaction() as connection:
        return nights.is_run(connection, farm)


def board_of(place: HistoryLocation, settings: Settings, farm: str | None = None) -> Dashboard:
    """What the dashboard shows: the latest night as it stands, and those before it.

    Args:
        place: The history.
        settings: What nights are judged by.
        farm: Only nights of this farm; None for all.

    Raises:
        StoreError: The history cannot be read.
    """
    known = nights_of(place, farm, _BOARD_NIGHTS)
    if not known:
        return Dashboard(status_of(None, (), _now(), Around()))
    snapshots = [seen(place, night) for night in known]
    reports = [
        judged(place, snapshot, settings, 0 if i else MOST_TRENDS)
        for i, snapshot in enumerate(snapshots)
    ]
    return Dashboard(_status(place, snapshots[0]), tuple(reports), reports[0].trends)


def _now() -> datetime:
    return datetime.now(timezone.utc)
