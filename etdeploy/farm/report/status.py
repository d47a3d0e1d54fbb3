"""How a night stands, from the states of its visits; nothing is read here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from statistics import median

from etdeploy.core.console import count
from etdeploy.core.layout import cut, fit, table
from etdeploy.core.values import Kind, Value
from etdeploy.farm.model import AttemptResult, Fate, Offer, Standing, VisitState
from etdeploy.farm.report.model import NightInfo
from etdeploy.farm.work.parcel import GATE
from etdeploy.report.formatting import moment

_OVER = (Standing.DONE, Standing.FAILED, Standing.MISSED)


@dataclass(frozen=True)
class Around:
    """What is known besides the visits.

    Attributes:
        labels: Devices as a person tells them apart, by identity.
        reserved: For whom and until when, by identity.
        quarantined: Why, by identity.
        running: The device and host of each visit that is under way, by visit.
        offers: The devices that are plugged in; None where that is not known.
        stopped: Whether nobody runs the farm now.
    """

    labels: Mapping[str, str] = field(default_factory=dict)
    reserved: Mapping[str, str] = field(default_factory=dict)
    quarantined: Mapping[str, str] = field(default_factory=dict)
    running: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    offers: Sequence[Offer] | None = None
    stopped: bool = False


def status_of(
    night: NightInfo | None, states: Sequence[VisitState], now: datetime, around: Around
) -> Status:
    """The night as it stands."""
    standing = Counter(state.standing for state in states)
    took = _durations(states)
    over = night is not None and night.finished_at is not None
    devices = [
        _device(identity, states, now, around, took, over) for identity in _known(states, around)
    ]
    devices.sort(key=lambda device: (device.label, device.identity))
    ends = [device.expected_end for device in devices if device.expected_end]
    left = [state for state in states if state.standing not in _OVER]
    left.sort(key=lambda state: state.standing is not Standing.RUNNING)
    return Status(
        night=night,
        at=_iso(now),
        devices=tuple(devices),
        queue=tuple(_waiting(state, around) for state in left),
        visits=len(states),
        done=standing[Standing.DONE],
        failed=standing[Standing.FAILED],
        missed=standing[Standing.MISSED],
        expected_end=max(ends, default=None),
        stopped=around.stopped and night is not None and not over,
    )


def devices_of(state: VisitState) -> tuple[str, ...]:
    """The devices that a visit may go to or was given to, by identity."""
    bound = (state.visit.device,) if state.visit.device else ()
    return (*bound, *state.visit.among, *(ending.identity for ending in state.attempts))


def _known(states: Sequence[VisitState], around: Around) -> list[str]:
    found = dict.fromkeys(identity for state in states for identity in devices_of(state))
    return list(found | dict.fromkeys(around.quarantined) | dict.fromkeys(around.reserved))


def _device(
    identity: str,
    states: Sequence[VisitState],
    now: datetime,
    around: Around,
    took: Mapping[tuple[str, str], float],
    over: bool,
) -> DeviceNow:
    own = [state for state in states if _at(state, around) == identity]
    standing = Counter(state.standing for state in own)
    left = [state for state in own if state.standing not in _OVER]
    endings = [e for state in states for e in state.attempts if e.identity == identity]
    doing, detail = _now(identity, left, endings, around, over)
    seconds = [_expected_s(state.visit.recipe, identity, took) for state in left]
    known = [each for each in seconds if each is not None]
    end = now + timedelta(seconds=sum(known)) if known and len(known) == len(seconds) else None
    hosts = [host for of, host in around.running.values() if of == identity]
    hosts += [ending.host for ending in reversed(endings)]
    return DeviceNow(
        identity=identity, label=around.labels.get(identity, identity),
        host=hosts[0] if hosts else "", now=doing, detail=detail, done=standing[Standing.DONE],
        failed=standing[Standing.FAILED], missed=standing[Standing.MISSED], left=len(left),
        expected_end=_iso(end) if end and not over and not around.stopped else None,
    )  # fmt: skip


def _at(state: VisitState, around: Around) -> str | None:
    """The device that a visit belongs to; None while it may go to several."""
    if state.visit.id in around.running and state.standing is Standing.RUNNING:
        return around.running[state.visit.id][0]
    if state.result:
        return state.result.identity
    if state.visit.device is None and state.attempts and state.standing in _OVER:
        return state.attempts[-1].identity
    return state.visit.device


def _now(
    identity: str,
    left: Sequence[VisitState],
    endings: Sequence[AttemptResult],
    around: Around,
    over: bool,
) -> tuple[Now, str]:
    running = [state for state in left if state.standing is Standing.RUNNING]
    if running and not over and not around.stopped:
        return Now.MEASURING, running[0].visit.recipe
    if identity in around.quarantined:
        return Now.QUARANTINED, around.quarantined[identity]
    if identity in around.reserved:
        return Now.RESERVED, around.reserved[identity]
    if around.offers is not None:
        there = [offer for offer in around.offers if offer.identity == identity]
        if not there:
            return Now.AWAY, "no host offers it"
        if all(offer.problem for offer in there):
            return Now.PROBLEM, there[0].problem
    if not left or over:
        return Now.IDLE, ""
    if around.stopped:
        return Now.STOPPED, f"next: {left[0].visit.recipe}"
    return _waits(left, endings)


def _waits(left: Sequence[VisitState], endings: Sequence[AttemptResult]) -> tuple[Now, str]:
    last = endings[-1] if endings else None
    if last and last.fate is Fate.PUT_OFF and last.failure and last.failure.kind == GATE:
        return Now.GATE, last.failure.message
    if last and last.fate is Fate.LOST:
        return Now.AWAY, last.failure.message if last.failure else f"lost with {last.host}"
    return Now.WAITING, f"next: {left[0].visit.recipe}"


def _durations(states: Sequence[VisitState]) -> dict[tuple[str, str], float]:
    """How long a visit took, by recipe and device, and by either alone (with "" for the other)."""
    seconds: dict[tuple[str, str], list[float]] = {}
    for state in states:
        if ending := state.result:
            recipe, identity = state.visit.recipe, ending.identity
            for key in ((recipe, identity), (recipe, ""), ("", identity), ("", "")):
                seconds.setdefault(key, []).append(ending.seconds)
    return {key: median(values) for key, values in seconds.items()}


def _expected_s(recipe: str, identity: str, took: Mapping[tuple[str, str], float]) -> float | None:
    keys = ((recipe, identity), (recipe, ""), ("", identity), ("", ""))
    return next((took[key] for key in keys if key in took), None)


def _waiting(state: VisitState, around: Around) -> Waiting:
    identity = _at(state, around)
    last = state.attempts[-1] if state.attempts else None
    told = last.failure.message if last and last.failure else ""
    return Waiting(
        visit=state.visit.id,
        recipe=state.visit.recipe,
        device=around.labels.get(identity, identity) if identity else f"any of {state.visit.group}",
        repeat=state.visit.repeat,
        standing=str(state.standing),
        attempts=len(state.attempts),
        detail=state.reason or (f"{last.fate}: {told}" if last else ""),
    )


def _iso(time: datetime) -> str:
    return time.isoformat(timespec="seconds")


class Now(Kind):
    """What a device is doing."""

    MEASURING = "measuring"
    GATE = "waiting for a gate"
    WAITING = "waiting"
    AWAY = "away"
    PROBLEM = "has a problem"
    RESERVED = "reserved"
    QUARANTINED = "quarantined"
    STOPPED = "stopped"
    IDLE = "nothing left to do"


class DeviceNow(Value):
    """A device as it stands now.

    Attributes:
        identity: Of the device.
        label: As a person tells devices apart.
        host: That has it, or had it last; empty if nobody knows.
        now: What it is doing.
        detail: The recipe that it measures, or why it does nothing.
        done, failed, missed, left: Visits; `left` are bound to it and not yet measured.
        expected_end: When it will be done, in UTC, ISO 8601; null where nobody can tell.
    """

    identity: str
    label: str
    host: str
    now: Now
    detail: str
    done: int
    failed: int
    missed: int
    left: int
    expected_end: str | None


class Waiting(Value):
    """A visit that is still to be measured."""

    visit: str
    recipe: str
    device: str
    repeat: int
    standing: str
    attempts: int
    detail: str


class Status(Value):
    """A night as it stands now.

    Attributes:
        night: The latest; null where there was none yet.
        at: When this was looked up, in UTC, ISO 8601.
        devices: In the order of their labels.
        queue: Visits that are not over, those that run first.
        visits, done, failed, missed: How many.
        expected_end: Of the last device; null where nobody can tell.
        stopped: Whether the night is not over, and nobody goes on with it now.
    """

    night: NightInfo | None
    at: str
    devices: tuple[DeviceNow, ...] = ()
    queue: tuple[Waiting, ...] = ()
    visits: int = 0
    done: int = 0
    failed: int = 0
    missed: int = 0
    expected_end: str | None = None
    stopped: bool = False


# What is shown first where there is no room for all: what somebody may have to do something about,
# then what goes on.
_FIRST = (
    Now.PROBLEM, Now.AWAY, Now.GATE, Now.QUARANTINED, Now.MEASURING, Now.RESERVED, Now.STOPPED,
    Now.WAITING, Now.IDLE,
)  # fmt: skip
_COLUMNS = ("device", "host", "done", "failed", "missed", "left", "end (UTC)", "now")
_FEW = ("device", "left", "now")
# A last column that is narrower says nothing.
_LEAST_NOW = 24


def status_text(
    status: Status, width: int | None = None, height: int | None = None, note: str = ""
) -> str:
    """The table of the devices.

    Args:
        status: The night as it stands.
        width: The maximum line length; None for lines of any length.
        height: The number of lines at most, of which those devices get the room that matter first,
            a line each; the others are counted. None for all devices, in the order of their labels.
        note: A last line, such as a warning.
    """
    head, end = fit(_head(status), width), [fit(note, width)] if note else []
    if not status.devices:
        return "\n\n".join([head, *end])
    whole = "\n\n".join([head, _table(status.devices, width), *end])
    if height is None or _lines(whole, width) <= height:
        return whole
    ranked = sorted(status.devices, key=lambda device: _FIRST.index(device.now))
    room = height - sum(_lines(part, width) + 1 for part in (head, *end))
    return "\n\n".join([head, _some(ranked, width, room), *end])


def _some(ranked: Sequence[DeviceNow], width: int | None, room: int) -> str:
    """As many devices as fit, and how many are not shown; at least that."""
    fewest, most = 0, len(ranked) - 1
    while fewest < most:
        number = (fewest + most + 1) // 2
        fits = _lines(_shortened(ranked, number, width), width) <= room
        fewest, most = (number, most) if fits else (fewest, number - 1)
    return _shortened(ranked, fewest, width)


def _shortened(ranked: Sequence[DeviceNow], number: int, width: int | None) -> str:
    left = Counter(str(device.now) for device in ranked[number:])
    parts = ", ".join(f"{many:,} {now}" for now, many in left.items())
    rest = fit(f"{count(sum(left.values()), 'more device')}: {parts}", width)
    return f"{_table(ranked[:number], width, is_cut=True)}\n{rest}" if number else rest


def _table(devices: Sequence[DeviceNow], width: int | None, *, is_cut: bool = False) -> str:
    """The rows; with `is_cut`, each is a line where the terminal is wide enough for that."""
    columns: tuple[str, ...] = _COLUMNS
    rows = [_row(device) for device in devices]
    if width is not None and _room(columns, rows, width) < _LEAST_NOW:
        columns = _FEW
        rows = [[row[_COLUMNS.index(name)] for name in columns] for row in rows]
    if width is not None and is_cut:
        room = max(_LEAST_NOW, _room(columns, rows, width))
        rows = [[*row[:-1], cut(row[-1], room)] for row in rows]
    return table(columns, rows, right=columns[1:-1] if columns == _FEW else columns[2:7],
                 width=width)  # fmt: skip


def _row(device: DeviceNow) -> list[str]:
    end = device.expected_end[11:16] if device.expected_end else "-"
    return [
        device.label, device.host or "-", str(device.done), str(device.failed),
        str(device.missed), str(device.left), end,
        f"{device.now}: {device.detail}" if device.detail else str(device.now),
    ]  # fmt: skip


def _room(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> int:
    """The width that is left for the last column."""
    before = range(len(columns) - 1)
    return width - sum(2 + max(len(columns[i]), *(len(row[i]) for row in rows)) for i in before)


def _lines(text: str, width: int | None) -> int:
    """How many lines of a terminal it takes: a word that is too long goes on in the next one."""
    return sum(-(-max(1, len(line)) // (width or max(1, len(line)))) for line in text.split("\n"))


def _head(status: Status) -> str:
    if status.night is None:
        return "no night was run yet"
    night = status.night
    over = f"ended {moment(night.finished_at)}" if night.finished_at else _going(status)
    return (
        f"{night.farm}, night {night.id}, began {moment(night.started_at)}, {over}\n"
        f"{status.done:,} of {status.visits:,} visits measured, {status.failed:,} failed, "
        f"{status.missed:,} missed"
    )


def _going(status: Status) -> str:
    if status.stopped:
        return "stopped: etdeploy farm run goes on with it"
    if status.expected_end:
        return f"expected to end {moment(status.expected_end)}"
    return "going on"
