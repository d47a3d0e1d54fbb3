"""The status of a night, from the states of its visits; nothing is read here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from statistics import median

from etdeploy.core.console import count
from etdeploy.core.layout import cut, fit, table
from etdeploy.core.values import StrEnum, Value
from etdeploy.farm.model import AttemptResult, Fate, Standing, VisitState
from etdeploy.farm.report.model import NightInfo
from etdeploy.farm.work.artifact import GATE
from etdeploy.report.formatting import utc_text

_OVER = (Standing.DONE, Standing.FAILED, Standing.MISSED)


class Activity(StrEnum):
    """What a device is doing; those that a person may have to act on come first."""

    AWAY = "away"
    GATE = "waiting for a gate"
    QUARANTINED = "quarantined"
    MEASURING = "measuring"
    RESERVED = "reserved"
    STOPPED = "stopped"
    WAITING = "waiting"
    IDLE = "nothing left to do"


class DeviceStatus(Value):
    """The status of a device.

    Attributes:
        host: That has it, or had it last; empty if unknown.
        detail: The recipe that it measures, or why it does nothing.
        done, failed, missed, left: Visits; `left` are bound to it and not yet measured.
        expected_end: In UTC, ISO 8601; null if unknown.
    """

    identity: str
    label: str
    host: str
    now: Activity
    detail: str
    done: int
    failed: int
    missed: int
    left: int
    expected_end: str | None


class QueuedVisit(Value):
    """A visit that is still to be measured."""

    visit: str
    recipe: str
    device: str
    repeat: int
    standing: str
    attempts: int
    detail: str


class Status(Value):
    """The status of the latest night, `null` before the first one.

    Attributes:
        at: The time of the status, in UTC, ISO 8601.
        devices: In the order of their labels.
        queue: Visits that are not over, those that run first.
        expected_end: Of the last device; null if unknown.
        stopped: Whether the night is not over, and no process runs it.
    """

    night: NightInfo | None
    at: str
    devices: tuple[DeviceStatus, ...] = ()
    queue: tuple[QueuedVisit, ...] = ()
    visits: int = 0
    done: int = 0
    failed: int = 0
    missed: int = 0
    expected_end: str | None = None
    stopped: bool = False


@dataclass(frozen=True)
class StatusContext:
    """What is known besides the visits; labels, reservations and quarantine by identity.

    Attributes:
        running: The device and host of each visit that is under way, by visit.
        stopped: Whether no process runs the farm.
    """

    labels: Mapping[str, str] = field(default_factory=dict)
    reserved: Mapping[str, str] = field(default_factory=dict)
    quarantined: Mapping[str, str] = field(default_factory=dict)
    running: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    stopped: bool = False


def derive_status(
    night: NightInfo | None, states: Sequence[VisitState], now: datetime, context: StatusContext
) -> Status:
    standing = Counter(state.standing for state in states)
    took = _durations(states)
    over = night is not None and night.finished_at is not None
    devices = [
        _device(identity, states, now, context, took, over) for identity in _known(states, context)
    ]
    devices.sort(key=lambda device: (device.label, device.identity))
    ends = [device.expected_end for device in devices if device.expected_end]
    left = [state for state in states if state.standing not in _OVER]
    left.sort(key=lambda state: state.standing is not Standing.RUNNING)
    return Status(
        night=night,
        at=_iso(now),
        devices=tuple(devices),
        queue=tuple(_queued(state, context) for state in left),
        visits=len(states),
        done=standing[Standing.DONE],
        failed=standing[Standing.FAILED],
        missed=standing[Standing.MISSED],
        expected_end=max(ends, default=None),
        stopped=context.stopped and night is not None and not over,
    )


def devices_of(state: VisitState) -> tuple[str, ...]:
    """The devices that a visit may go to or was given to, by identity."""
    bound = (state.visit.device,) if state.visit.device else ()
    return (*bound, *state.visit.among, *(ending.identity for ending in state.attempts))


def _known(states: Sequence[VisitState], context: StatusContext) -> list[str]:
    found = dict.fromkeys(identity for state in states for identity in devices_of(state))
    found |= dict.fromkeys(filter(None, map(_expected, states)))
    return list(found | dict.fromkeys(context.quarantined) | dict.fromkeys(context.reserved))


def _device(
    identity: str,
    states: Sequence[VisitState],
    now: datetime,
    context: StatusContext,
    took: Mapping[tuple[str, str], float],
    over: bool,
) -> DeviceStatus:
    own = [state for state in states if _device_of(state, context) == identity]
    standing = Counter(state.standing for state in own)
    left = [state for state in own if state.standing not in _OVER]
    endings = [e for state in states for e in state.attempts if e.identity == identity]
    doing, detail = _activity(identity, left, endings, context, over)
    if absent := [state.reason for state in own if _expected(state)]:
        doing, detail = Activity.AWAY, absent[0]
    seconds = [_expected_s(state.visit.recipe, identity, took) for state in left]
    known = [each for each in seconds if each is not None]
    end = now + timedelta(seconds=sum(known)) if known and len(known) == len(seconds) else None
    hosts = [host for of, host in context.running.values() if of == identity]
    hosts += [ending.host for ending in reversed(endings)]
    return DeviceStatus(
        identity=identity, label=context.labels.get(identity, identity),
        host=hosts[0] if hosts else "", now=doing, detail=detail, done=standing[Standing.DONE],
        failed=standing[Standing.FAILED], missed=standing[Standing.MISSED], left=len(left),
        expected_end=_iso(end) if end and not over and not context.stopped else None,
    )  # fmt: skip


def _device_of(state: VisitState, context: StatusContext) -> str | None:
    """The device that a visit belongs to; None while it may go to several."""
    if state.visit.id in context.running and state.standing is Standing.RUNNING:
        return context.running[state.visit.id][0]
    if state.result:
        return state.result.identity
    if state.visit.device is None and state.attempts and state.standing in _OVER:
        return state.attempts[-1].identity
    return state.visit.device or _expected(state)


def _expected(state: VisitState) -> str | None:
    """The name of a device that was expected and never there, of which nothing else is known."""
    return state.visit.name or None if state.visit.device is None else None


def _activity(
    identity: str,
    left: Sequence[VisitState],
    endings: Sequence[AttemptResult],
    context: StatusContext,
    over: bool,
) -> tuple[Activity, str]:
    running = [state for state in left if state.standing is Standing.RUNNING]
    if running and not over and not context.stopped:
        return Activity.MEASURING, running[0].visit.recipe
    if identity in context.quarantined:
        return Activity.QUARANTINED, context.quarantined[identity]
    if identity in context.reserved:
        return Activity.RESERVED, context.reserved[identity]
    if not left or over:
        return Activity.IDLE, ""
    if context.stopped:
        return Activity.STOPPED, f"next: {left[0].visit.recipe}"
    return _waiting_for(left, endings)


def _waiting_for(
    left: Sequence[VisitState], endings: Sequence[AttemptResult]
) -> tuple[Activity, str]:
    last = endings[-1] if endings else None
    if last and last.fate is Fate.PUT_OFF and last.failure and last.failure.kind == GATE:
        return Activity.GATE, last.failure.message
    if last and last.fate is Fate.LOST:
        return Activity.AWAY, last.failure.message if last.failure else f"lost with {last.host}"
    return Activity.WAITING, f"next: {left[0].visit.recipe}"


def _durations(states: Sequence[VisitState]) -> dict[tuple[str, str], float]:
    """Median seconds of a visit, by recipe and device, and by either alone ("" for the other)."""
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


def _queued(state: VisitState, context: StatusContext) -> QueuedVisit:
    identity = _device_of(state, context)
    last = state.attempts[-1] if state.attempts else None
    told = last.failure.message if last and last.failure else ""
    return QueuedVisit(
        visit=state.visit.id,
        recipe=state.visit.recipe,
        device=context.labels.get(identity, identity)
        if identity
        else f"any of {state.visit.group}",
        repeat=state.visit.repeat,
        standing=str(state.standing),
        attempts=len(state.attempts),
        detail=state.reason or (f"{last.fate}: {told}" if last else ""),
    )


def _iso(time: datetime) -> str:
    return time.isoformat(timespec="seconds")


_COLUMNS = ("device", "host", "done", "failed", "missed", "left", "end (UTC)", "now")
_FEW = ("device", "left", "now")
# The least width of the last column.
_LEAST_NOW = 24


def status_text(
    status: Status, width: int | None = None, height: int | None = None, note: str = ""
) -> str:
    """The table of the devices, in the order of their labels.

    Where it has more lines than `height`, the devices that matter most are shown, a line each, and
    the others counted. `note` is a last line, such as a warning.
    """
    head, end = fit(_head(status), width), [fit(note, width)] if note else []
    if not status.devices:
        return "\n\n".join([head, *end])
    whole = "\n\n".join([head, _table(status.devices, width), *end])
    if height is None or _lines(whole, width) <= height:
        return whole
    order = list(Activity)
    ranked = sorted(status.devices, key=lambda device: order.index(device.now))
    room = height - sum(_lines(part, width) + 1 for part in (head, *end))
    return "\n\n".join([head, _some(ranked, width, room), *end])


def _some(ranked: Sequence[DeviceStatus], width: int | None, room: int) -> str:
    """As many devices as fit, and the number of the others."""
    fewest, most = 0, len(ranked) - 1
    while fewest < most:
        number = (fewest + most + 1) // 2
        fits = _lines(_shortened(ranked, number, width), width) <= room
        fewest, most = (number, most) if fits else (fewest, number - 1)
    return _shortened(ranked, fewest, width)


def _shortened(ranked: Sequence[DeviceStatus], number: int, width: int | None) -> str:
    left = Counter(str(device.now) for device in ranked[number:])
    parts = ", ".join(f"{many:,} {now}" for now, many in left.items())
    rest = fit(f"{count(sum(left.values()), 'more device')}: {parts}", width)
    return f"{_table(ranked[:number], width, is_cut=True)}\n{rest}" if number else rest


def _table(devices: Sequence[DeviceStatus], width: int | None, *, is_cut: bool = False) -> str:
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


def _row(device: DeviceStatus) -> list[str]:
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
    """How many lines of a terminal a text takes, with long words wrapped."""
    return sum(-(-max(1, len(line)) // (width or max(1, len(line)))) for line in text.split("\n"))


def _head(status: Status) -> str:
    if status.night is None:
        return "no night yet"
    night = status.night
    over = f"ended {utc_text(night.finished_at)}" if night.finished_at else _progress(status)
    return (
        f"{night.farm}, night {night.id}, began {utc_text(night.started_at)}, {over}\n"
        f"{status.done:,} of {status.visits:,} visits measured, {status.failed:,} failed, "
        f"{status.missed:,} missed"
    )


def _progress(status: Status) -> str:
    if status.stopped:
        return "stopped: etdeploy farm run resumes it"
    if status.expected_end:
        return f"expected to end {utc_text(status.expected_end)}"
    return "running"
