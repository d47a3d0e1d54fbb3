"""A night as it stands now."""

from __future__ import annotations

from etdeploy.core.kinds import Kind
from etdeploy.core.values import Value
from etdeploy.farm.report.model import NightInfo


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
