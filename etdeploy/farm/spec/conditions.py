"""Conditions on devices, and the window: read from farm.yaml, and compared with offers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta, timezone, tzinfo
from difflib import get_close_matches
from fnmatch import fnmatchcase
from itertools import zip_longest
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

from etdeploy.core.errors import UsageError
from etdeploy.core.layout import parse_size
from etdeploy.farm.model import AvailableDevice
from etdeploy.farm.spec.model import Condition, DeviceGroup, Window
from etdeploy.farm.spec.written import Group

EQUAL = "="
_COMPARED = re.compile(r"(?P<name>[^<>=]*?)\s*(?P<operator>>=|<=|>|<|=)\s*(?P<value>[^<>=]*)")
_VERSION = re.compile(r"\d+(?:\.\d+)*")
_OPERATORS: Mapping[str, Callable[[Any, Any], bool]] = {
    ">=": lambda a, b: a >= b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    "<": lambda a, b: a < b,
}
# Written as `memory`, which has a unit; the facts have it in bytes.
_MEMORY = "memory_bytes"
_COMPARABLE = {"os": "a version", "cpu_count": "a number", _MEMORY: "a size"}


class ConditionError(ValueError):
    """A condition that cannot be read; its text says why."""

    def __init__(self, key: str, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.key, self.hint = key, hint


def parse_group(written: Group) -> DeviceGroup:
    """Parse a group of devices."""
    found: list[Condition] = []
    for key, value in written.model_dump(exclude={"take"}, exclude_none=True).items():
        found += parse_conditions(key, str(value))
    if not found:
        raise ConditionError("", "the group names no property", 'every device is {name: "*"}')
    return DeviceGroup(conditions=tuple(found), take=written.take)


def parse_conditions(key: str, text: str) -> list[Condition]:
    """Parse a key: several conditions for a value with commas, or a name before a comparison."""
    fact = _MEMORY if key == "memory" else key
    parts = text.split(",") if fact in _COMPARABLE else [text]
    return [condition for part in parts for condition in _conditions(key, fact, part.strip())]


def _conditions(key: str, fact: str, part: str) -> Iterator[Condition]:
    match = _COMPARED.fullmatch(part)
    if not part:
        raise ConditionError(key, f"{key} is empty")
    if match is None or fact not in _COMPARABLE:
        if match and match["operator"] != EQUAL and part[0] in "<>":
            raise ConditionError(
                key,
                f"{key} takes words with * and ?, not the comparison {part!r}",
                "os, cpu_count and memory can be compared",
            )
        if fact == _MEMORY:
            raise ConditionError(key, f"{key} takes a comparison, not {part!r}", "e.g. '>=6 GB'")
        if fact == "cpu_count":
            _value(key, fact, part)
        yield Condition(key=fact, operator=EQUAL, value=part)
        return
    name, value = match["name"], match["value"].strip()
    if name and fact != "os":
        raise ConditionError(key, f"{key} takes a comparison, not {part!r}", "e.g. '>=8'")
    if name:
        yield Condition(key=fact, operator=EQUAL, value=name)
    _value(key, fact, value)
    yield Condition(key=fact, operator=match["operator"], value=value)


def _value(key: str, fact: str, text: str) -> tuple[int, ...]:
    """Parse the value of a comparison: the numbers of a version, or one number."""
    try:
        if fact == _MEMORY:
            return (parse_size(text),)
        if fact == "cpu_count":
            return (int(text),)
    except (UsageError, ValueError):
        raise ConditionError(key, f"{key}: {text!r} is not {_COMPARABLE[fact]}") from None
    if not _VERSION.fullmatch(text):
        raise ConditionError(key, f"{key}: {text!r} is not a version", "e.g. '>=14'")
    return _numbers(text)


def holds(condition: Condition, offer: AvailableDevice) -> bool:
    """Whether a device meets a condition; False if it does not report the property."""
    return any(_holds(condition, value) for value in _known(condition.key, offer))


def condition_text(condition: Condition) -> str:
    """The condition as text: `os >=14`, `soc SM8650`."""
    sign = "" if condition.operator == EQUAL else condition.operator
    key = "memory" if condition.key == _MEMORY else condition.key
    return f"{key} {sign}{condition.value}"


def reported_text(key: str, offer: AvailableDevice) -> str:
    """The value that a device reports for a property, as text."""
    values = _known(key, offer)
    if not values:
        return "unknown"
    if key == _MEMORY:
        from etdeploy.core.console import size

        return size(int(values[0]))
    return ", ".join(str(value) for value in dict.fromkeys(values))


def matches(text: str, pattern: str) -> bool:
    """Whether a word matches a pattern with `*` and `?`, ignoring case."""
    # Brackets are part of an IPv6 address.
    return fnmatchcase(text.lower(), pattern.lower().replace("[", "[[]"))


def is_pattern(text: str) -> bool:
    return "*" in text or "?" in text


def _known(key: str, offer: AvailableDevice) -> tuple[Any, ...]:
    """The values that a device reports for a property; none if it does not."""
    facts = offer.facts
    if key == "name":
        # `android` alone is any of that kind, as for --device where there is one.
        return (offer.name, facts.name, facts.kind)
    if key == "pool":
        return offer.pools
    value = offer.host if key == "host" else getattr(facts, key)
    return () if value is None else (value,)


def _holds(condition: Condition, known: Any) -> bool:
    key, value = condition.key, condition.value
    if key == "os" and (condition.operator != EQUAL or _VERSION.fullmatch(value)):
        return _version_holds(condition, str(known))
    if key in ("cpu_count", _MEMORY):
        wanted = _value(key, key, value)[0]
        same = condition.operator == EQUAL
        return known == wanted if same else _OPERATORS[condition.operator](known, wanted)
    if key == "os" and matches(str(known), f"{value} *"):
        return True  # the name without the version
    return matches(str(known), value)


def _version_holds(condition: Condition, known: str) -> bool:
    found = _VERSION.search(known)
    if found is None:
        return False
    ours, wanted = _numbers(found[0]), _numbers(condition.value)
    if condition.operator == EQUAL:
        return ours[: len(wanted)] == wanted
    # 14 is 14.0: a part that is left out is zero.
    ours, wanted = zip(*zip_longest(ours, wanted, fillvalue=0), strict=True)
    return _OPERATORS[condition.operator](ours, wanted)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


_TIME = re.compile(r"(\d{1,2}):(\d{2})", re.ASCII)
_DAY = 24 * 60


def parse_time(text: str) -> int | None:
    """Parse a time like `22:00`, up to `24:00`, as minutes after midnight; None for other text."""
    match = _TIME.fullmatch(text.strip())
    if match is None or int(match[2]) > 59:
        return None
    minutes = int(match[1]) * 60 + int(match[2])
    return minutes if minutes <= _DAY else None


def zone_problem(name: str) -> tuple[str, str | None] | None:
    """The error and the hint for the name of a time zone; None for a good one."""
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        known = sorted(available_timezones())
        by_city = {zone.rpartition("/")[2]: zone for zone in known}
        near = get_close_matches(name, known, n=1) or [
            by_city[city] for city in get_close_matches(name, by_city, n=1)
        ]
        hint = f"did you mean {near[0]}?" if near else "e.g. Europe/Berlin"
        return f"there is no time zone {name!r}", hint
    return None


def find_opening(window: Window, now: datetime) -> tuple[datetime, datetime]:
    """The start and end of the current opening of a window, else of the next one, in its zone."""
    zone = ZoneInfo(window.timezone) if window.timezone else None
    today = now.astimezone(zone).replace(tzinfo=None, hour=0, minute=0, second=0, microsecond=0)
    is_over_midnight = window.until_minute <= window.from_minute
    end_minute = window.until_minute + (_DAY if is_over_midnight else 0)
    for day in range(-1, 3):
        midnight = today + timedelta(days=day)
        start = _moments(midnight + timedelta(minutes=window.from_minute), zone)[0]
        end = max(_moments(midnight + timedelta(minutes=end_minute), zone))
        if now < end and start < end:
            return start.astimezone(zone), end.astimezone(zone)
    # Only where a clock jumps by more than a day.
    raise ValueError(f"the window {window} does not open")


def _moments(clock: datetime, zone: tzinfo | None) -> tuple[datetime, datetime]:
    """The moments at which a clock shows a time: two different ones where it is set back."""
    first, second = (
        clock.replace(tzinfo=zone, fold=fold).astimezone(timezone.utc) for fold in (0, 1)
    )
    return first, second
