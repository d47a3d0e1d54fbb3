"""A night as it stands, as a table for a terminal of any size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from etdeploy.core.console import count
from etdeploy.core.text.layout import cut, fit, table
from etdeploy.farm.report.live.status import DeviceNow, Now, Status
from etdeploy.report.shown import moment

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
