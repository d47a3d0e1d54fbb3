"""Properties that devices have to have: read from farm.yaml, and compared with offers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from etdeploy.core.errors import UsageError
from etdeploy.core.text.sizes import parse_size
from etdeploy.farm.model import Offer
from etdeploy.farm.spec.model import Condition, DeviceGroup
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
    """A property that says nothing; its text says why."""

    def __init__(self, key: str, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.key, self.hint = key, hint


def group_of(written: Group) -> DeviceGroup:
    """The group with its conditions.

    Raises:
        ConditionError: One of them cannot be read, or there is none.
    """
    found: list[Condition] = []
    for key, value in written.model_dump(exclude={"take"}, exclude_none=True).items():
        found += conditions_of(key, str(value))
    if not found:
        raise ConditionError("", "the group names no property", 'every device is {name: "*"}')
    return DeviceGroup(conditions=tuple(found), take=written.take)


def conditions_of(key: str, text: str) -> list[Condition]:
    """What a key asks for: several where a value has a comma, or a name before a comparison.

    Args:
        key: As in farm.yaml.
        text: `SM8650`, `Pixel*`, `>=14`, `Android >=13, <16`.

    Raises:
        ConditionError: A part is empty, or cannot be compared.
    """
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
    """What is compared: the numbers of a version, or one number."""
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


def holds(condition: Condition, offer: Offer) -> bool:
    """Whether a device has a property; not, where it does not report it."""
    known = _known(condition.key, offer)
    return any(_holds(condition, value) for value in known if value is not None)


def shown(condition: Condition) -> str:
    """The condition as a person says it: `os >=14`, `soc SM8650`."""
    sign = "" if condition.operator == EQUAL else condition.operator
    key = "memory" if condition.key == _MEMORY else condition.key
    return f"{key} {sign}{condition.value}"


def told(key: str, offer: Offer) -> str:
    """What a device says of a property."""
    values = [value for value in _known(key, offer) if value is not None]
    if not values:
        return "unknown"
    if key == _MEMORY:
        from etdeploy.core.console import size

        return size(int(values[0]))
    return ", ".join(str(value) for value in dict.fromkeys(values))


def matches(text: str, pattern: str) -> bool:
    """Whether a word is like a pattern with `*` and `?`, without regard to case."""
    # Brackets are part of an IPv6 address.
    return fnmatchcase(text.lower(), pattern.lower().replace("[", "[[]"))


def is_pattern(text: str) -> bool:
    """Whether it has wildcards."""
    return "*" in text or "?" in text


def _known(key: str, offer: Offer) -> tuple[Any, ...]:
    facts = offer.facts
    if key == "name":
        # `android` alone is any of that kind, as for --device where there is one.
        return (offer.name, facts.name, facts.kind)
    if key == "pool":
        return offer.pools
    return (offer.host,) if key == "host" else (getattr(facts, key),)


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
    # 14 is 14.0: what one does not say is zero.
    length = max(len(ours), len(wanted))
    return _OPERATORS[condition.operator](_padded(ours, length), _padded(wanted, length))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def _padded(numbers: tuple[int, ...], length: int) -> tuple[int, ...]:
    return numbers + (0,) * (length - len(numbers))
