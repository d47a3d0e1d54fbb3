"""Reads nights from the history: their visits, verdicts, reservations and quarantine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from difflib import get_close_matches
from pathlib import Path
from typing import TypeVar

from etdeploy import device_pool
from etdeploy.core.errors import UsageError
from etdeploy.farm.model import VisitState
from etdeploy.farm.night.events import open_attempts, state_of
from etdeploy.farm.report.model import (
    NightInfo,
    NightReport,
    assemble_report,
    load_alerts,
    load_trends,
)
from etdeploy.farm.report.pages import Dashboard
from etdeploy.farm.report.status import Status, StatusContext, derive_status, devices_of
from etdeploy.farm.spec.model import Farm
from etdeploy.farm.verdicts.night import judge_night
from etdeploy.history.location import HistoryLocation
from etdeploy.history.nights import KeptNight, KnownDevice

LAST = "last"
_MOST_NIGHTS = 100
_DASHBOARD_NIGHTS = 5
# Of the end of an id.
_FEWEST_CHARACTERS = 4
# More plots make a page that nobody scrolls through; the worst come first.
_MOST_TRENDS = 24


@dataclass(frozen=True)
class NightSnapshot:
    """A night as the history has it.

    Attributes:
        running: The device and host of each visit that is under way.
        labels: Names of devices, by identity.
    """

    night: NightInfo
    states: tuple[VisitState, ...]
    running: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Settings:
    """What a night is judged by: a farm.yaml or its defaults, and the recipes' files by label."""

    farm: Farm
    files: Mapping[str, Path] = field(default_factory=dict)


def night_info(night: KeptNight) -> NightInfo:
    return NightInfo(
        id=night.id, farm=night.farm, started_at=night.started_at, finished_at=night.ended_at
    )


def list_nights(
    place: HistoryLocation, farm: str | None = None, limit: int = _MOST_NIGHTS
) -> list[NightInfo]:
    """List the latest nights, the latest first; none where there is no history yet."""
    from etdeploy.history.store import nights
    from etdeploy.history.store.store import open_store

    if place.file and not place.file.exists():
        return []
    with open_store(place, read_only=True) as store, store.transaction() as connection:
        return [night_info(night) for night in nights.nights_of(connection, farm, limit)]


def find_night(place: HistoryLocation, text: str, farm: str | None = None) -> NightInfo:
    """Find a night by `last`, an id, or the end of one.

    Raises:
        UsageError: There is none, or several.
        StoreError: The history cannot be read.
    """
    known = list_nights(place, farm, 1 if text == LAST else 10 * _MOST_NIGHTS)
    if text == LAST:
        if known:
            return known[0]
        raise _none_yet(place)
    if not known:
        raise _none_yet(place)
    found = [n for n in known if n.id == text] or [
        n for n in known if len(text) >= _FEWEST_CHARACTERS and n.id.endswith(text)
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
        "no night yet", place=place.shown, remedy="Run one: etdeploy farm run farm.yaml"
    )


def load_snapshot(place: HistoryLocation, night: NightInfo) -> NightSnapshot:
    """Load a night with its visits."""
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
    return NightSnapshot(night, states, running, distinct_names(names))


def distinct_names(names: Mapping[str, str]) -> dict[str, str]:
    """Add the host to names that devices of several hosts share; by identity."""
    often = Counter(names.values())
    return {
        identity: f"{name}@{identity.rpartition('@')[2]}"
        if often[name] > 1 and "@" in identity[:-1]
        else name
        for identity, name in names.items()
    }


def load_report(
    place: HistoryLocation,
    night: NightSnapshot,
    settings: Settings,
    trends: int | None = None,
    *,
    required_percent: float = 0.0,
) -> NightReport:
    """Judge a night; the series of the `trends` worst verdicts are read, too, or all of them."""
    from etdeploy.history.store.store import open_store

    with open_store(place, read_only=True) as store:
        verdicts = judge_night(store, night.night.id, night.states, settings.farm, settings.files)
        found = load_trends(store, verdicts[:trends])
        alerts = load_alerts(store, night.night)
    labels = dict(night.labels) | {each.identity: each.device for each in verdicts}
    quarantined = {
        i: each.reason
        for i, each in _shelved(night, device_pool.quarantined_devices(place)).items()
    }
    report = assemble_report(
        night.night, night.states, verdicts, quarantined, found, labels, required_percent
    )
    return report.model_copy(update={"alerts": alerts})


S = TypeVar("S", bound=KnownDevice)


def _shelved(night: NightSnapshot, kept: Iterable[S]) -> dict[str, S]:
    """Select what is about the night's devices, by their identities in the night."""
    shelf = tuple(kept)
    return {
        identity: each
        for identity in dict.fromkeys(i for state in night.states for i in devices_of(state))
        for each in shelf
        if each.is_of_night(identity, night.labels.get(identity, ""))
    }


def _and_others(night: NightSnapshot, kept: Sequence[S]) -> dict[str, S]:
    """The same, and what is about devices that the night does not know."""
    own = _shelved(night, kept)
    return {**own, **{e.night_identity: e for e in kept if e not in own.values()}}


def load_status(place: HistoryLocation, farm: str | None = None) -> Status:
    """Load the status of the latest night."""
    latest = list_nights(place, farm, 1)
    if not latest:
        return derive_status(None, (), _now(), StatusContext())
    return _status(place, load_snapshot(place, latest[0]))


def _status(place: HistoryLocation, night: NightSnapshot) -> Status:
    claims, quarantined = (
        device_pool.active_reservations(place),
        device_pool.quarantined_devices(place),
    )
    # Devices that were not measured have no names in the night.
    names = {each.night_identity: each.device for each in (*claims, *quarantined)}
    context = StatusContext(
        labels={**names, **night.labels},
        reserved={
            identity: f"{each.owner} until {device_pool.local_time(each.until)}"
            for identity, each in _and_others(night, claims).items()
        },
        quarantined={i: each.reason for i, each in _and_others(night, quarantined).items()},
        running=night.running,
        stopped=not _is_run(place, night.night.farm),
    )  # fmt: skip
    return derive_status(night.night, night.states, _now(), context)


def _is_run(place: HistoryLocation, farm: str) -> bool:
    from etdeploy.history.store import nights
    from etdeploy.history.store.store import open_store

    with open_store(place, read_only=True) as store, store.transaction() as connection:
        return nights.is_farm_held(connection, farm)


def load_dashboard(
    place: HistoryLocation, settings: Settings, farm: str | None = None
) -> Dashboard:
    """Load the status of the latest night, and the reports of this one and those before it."""
    known = list_nights(place, farm, _DASHBOARD_NIGHTS)
    if not known:
        return Dashboard(derive_status(None, (), _now(), StatusContext()))
    snapshots = [load_snapshot(place, night) for night in known]
    reports = [
        load_report(place, snapshot, settings, 0 if i else _MOST_TRENDS)
        for i, snapshot in enumerate(snapshots)
    ]
    return Dashboard(_status(place, snapshots[0]), tuple(reports), reports[0].trends)


def _now() -> datetime:
    return datetime.now(timezone.utc)
