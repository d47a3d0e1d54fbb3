"""Nights of farms, as the history's database keeps them.

What the contents of visits and attempts are is the farm's to say.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from math import isfinite
from typing import Any

from etdeploy.core.values import Value

FINISHED = "finished"
ABANDONED = "abandoned"
_REPLACED = "\N{REPLACEMENT CHARACTER}"


class KeptNight(Value):
    """A night; times are UTC in ISO 8601.

    Attributes:
        id: Unique in the database.
        farm: The farm's name.
        digest: Of what the farm.yaml says.
        started_at: When it began.
        ended_at: When it ended; None before.
        outcome: How: finished, abandoned.
    """

    id: str
    farm: str
    digest: str
    started_at: str
    ended_at: str | None = None
    outcome: str | None = None


class KeptAttempt(Value):
    """An attempt of a visit.

    Attributes:
        attempt: Its number, as the night counts.
        token: Of its beginning.
        identity, device, host: Where it is.
        started_at: When it was told to have begun.
        ended_at: When it was told to have ended; None while it is under way. So are those below.
        fate: How it ended.
        run_id: Of the record.
        content: All that is known of its end.
        counts: Whether it is the one attempt of its visit that counts.
    """

    attempt: int
    token: str
    identity: str
    host: str
    started_at: str
    device: str = ""
    ended_at: str | None = None
    fate: str | None = None
    run_id: str | None = None
    content: dict[str, Any] | None = None
    counts: bool = False


class KeptVisit(Value):
    """A visit with its attempts, the earliest first.

    Attributes:
        id: Unique in the database.
        content: What the night planned.
        standing: Where it stands.
        reason: Why it failed or was missed.
    """

    id: str
    content: dict[str, Any]
    standing: str
    reason: str = ""
    attempts: tuple[KeptAttempt, ...] = ()


class CoordinatorProcess(Value):
    """A process that runs a farm.

    Attributes:
        token: Of this one process.
        who: USER@HOST.
        process: Its id there.
        since: When it began, in UTC, ISO 8601.
    """

    token: str
    who: str
    process: int
    since: str


def storable(value: Any) -> Any:
    """A value of JSON without what PostgreSQL does not take: a crash may print anything."""
    if isinstance(value, str):
        return value.replace("\0", _REPLACED).encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, float) and not isfinite(value):
        return None
    if isinstance(value, dict):
        return {storable(key): storable(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [storable(each) for each in value]
    return value


# A device that is the host itself has the same identity on every host.
_OF_EVERY_HOST = "host"
# A board is known by the start of its kernel, so by another identity after each start.
_OF_ONE_START = "ssh-"


class KnownDevice(Value):
    """A device as the shelf knows it.

    Attributes:
        identity: As `etdeploy.devices.base.lock_name` has it.
        device: Its name, as `--device` took it.
        host: The host that the device itself is; empty for one that is plugged into a host.
    """

    identity: str
    device: str
    host: str = ""

    def is_of(self, identity: str, host: str, device: str = "") -> bool:
        """Whether this is the device with that identity, on that host, with that name."""
        if self.identity == identity:
            return self.host in ("", host)
        boards = is_of_one_start(self.identity) and is_of_one_start(identity)
        return boards and self.device == device

    def is_of_night(self, identity: str, device: str = "") -> bool:
        """The same for a device as a night has it, where hosts are told apart by their names."""
        return self.is_of(locked_as(identity, self.host), self.host, device)

    @property
    def night_identity(self) -> str:
        """What a night calls the device; of those that are a host themselves, the host."""
        return f"{self.identity}@{self.host}" if self.host else self.identity


class Reservation(KnownDevice):
    """That a device is somebody's for a while.

    Attributes:
        owner: USER@HOST, or USER for one on every host.
        until: When it ends, by the database's clock.
        note: What for.
    """

    owner: str
    until: datetime
    note: str = ""


class Quarantined(KnownDevice):
    """That no night uses a device.

    Attributes:
        reason: Why.
        since: From when on, by the database's clock.
        by: Who quarantined it: USER@HOST, or a night.
    """

    reason: str
    since: datetime
    by: str


def is_of_one_start(identity: str) -> bool:
    """Whether a device with this identity has another one after it was restarted."""
    return identity.startswith(_OF_ONE_START)


def locked_as(identity: str, host: str) -> str:
    """The identity of a device here, from that in a night: there, hosts are told apart by name."""
    is_host_itself = bool(host) and identity.endswith(f"@{host}")
    return _OF_EVERY_HOST if is_host_itself else identity


def host_of(identity: str, host: str) -> str:
    """What `KnownDevice.host` is for a device with this identity on that host."""
    return host if identity == _OF_EVERY_HOST else ""


class DeviceWeek(Value):
    """A device in a week; shares are null where there was nothing to fail.

    Attributes:
        week: Its Monday.
        attempts: Of nights, that ended.
        failed: Of these, those that failed, for whatever reason.
        device_failures: Of these, those for which the device is to blame, as far as the error says.
        lost: Attempts whose host or worker was gone.
        put_off: Attempts that did not begin, since the device was too warm, empty or full.
        runs: In the history, those of nights included; without simulated ones.
        disturbed: Of these, those whose times do not count.
        nights: That had visits for this very device.
        quarantined_nights: Of these, those that missed some because it was quarantined.
    """

    week: str
    attempts: int = 0
    failed: int = 0
    device_failures: int = 0
    lost: int = 0
    put_off: int = 0
    runs: int = 0
    disturbed: int = 0
    nights: int = 0
    quarantined_nights: int = 0
    failed_percent: float | None = None
    disturbed_percent: float | None = None
    quarantined_percent: float | None = None


class DeviceHealth(Value):
    """A device over weeks.

    Attributes:
        device: Its name.
        identity: As nights have it; empty for a device that no night measured.
        quarantined: Why it is quarantined now; empty if it is not.
        weeks: Those with a run, an attempt or a visit, the earliest first.
    """

    device: str
    identity: str
    quarantined: str
    weeks: tuple[DeviceWeek, ...]


class DeviceDay(Value):
    """Numbers of a device on one day, with the names of `DeviceWeek`.

    Attributes:
        device: Its identity in nights, or the label of the series where no night measured it.
        day: In UTC, ISO 8601.
    """

    device: str
    day: str
    numbers: dict[str, int]


def device_health(
    days: Iterable[DeviceDay], names: Mapping[str, str], quarantined: Mapping[str, str]
) -> tuple[DeviceHealth, ...]:
    """Adds the days of each device up to weeks.

    Args:
        days: In any order, several for a day if need be.
        names: Of devices, by identity.
        quarantined: Reasons, by identity.

    Returns:
        Devices in the order of their names.
    """
    sums: dict[str, dict[str, Counter[str]]] = {}
    for each in days:
        # A board has another identity after each start.
        known = names.get(each.device, each.device) if is_of_one_start(each.device) else each.device
        week = sums.setdefault(known, {}).setdefault(_monday(each.day), Counter())
        week.update(each.numbers)
    found = [
        DeviceHealth(
            device=names.get(device, device),
            identity=device if device in names else "",
            quarantined=quarantined.get(device, ""),
            weeks=tuple(_week(week, weeks[week]) for week in sorted(weeks)),
        )
        for device, weeks in sums.items()
    ]
    return tuple(sorted(found, key=lambda each: (each.device, each.identity)))


def _monday(day: str) -> str:
    try:
        date = datetime.fromisoformat(day[:10]).date()
    except ValueError:  # a record may have any text there
        return day[:10]
    return (date - timedelta(days=date.weekday())).isoformat()


def _week(week: str, numbers: Counter[str]) -> DeviceWeek:
    return DeviceWeek(
        week=week,
        **numbers,
        failed_percent=_percent(numbers["failed"], numbers["attempts"]),
        disturbed_percent=_percent(numbers["disturbed"], numbers["runs"]),
        quarantined_percent=_percent(numbers["quarantined_nights"], numbers["nights"]),
    )


def _percent(part: int, whole: int) -> float | None:
    return round(100 * part / whole, 2) if whole else None
