"""Completes a set of options: the recipe's overrides, then ExecuTorch's relations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches

from etdeploy.core.errors import Blocker, BuildError
from etdeploy.core.values import Explained
from etdeploy.plan.cmake_options import OptionTable

BY_HAND = "recipe"
_OFF = frozenset({"", "OFF", "0", "NO", "FALSE", "N", "IGNORE", "NOTFOUND"})


def with_overrides(
    options: tuple[Explained, ...], by_hand: Mapping[str, str | bool | int], table: OptionTable
) -> tuple[Explained, ...]:
    """The options, with those of `runtime.cmake` replacing derived ones or added at the end."""
    forced = {
        name: Explained(
            name=name, value=_text(value), reason=_override_reason(name, table), by_hand=True
        )
        for name, value in by_hand.items()
    }
    kept = tuple(forced.pop(option.name, option) for option in options)
    return (*kept, *forced.values())


def apply_relations(
    options: tuple[Explained, ...], table: OptionTable
) -> tuple[tuple[Explained, ...], tuple[Blocker, ...]]:
    """Turns on the options that others which are on require."""
    found = {option.name: option for option in options}
    while added := _required(found, table):
        found |= added
    blockers = (*_unmet(found, table), *_conflicts(found, table))
    return tuple(found.values()), blockers


def _required(found: Mapping[str, Explained], table: OptionTable) -> dict[str, Explained]:
    """What to turn on next, because an option that is on requires it."""
    return {
        other: Explained(name=other, value="ON", reason=f"{relation.if_on} requires it")
        for relation in table.requires
        if is_on(found.get(relation.if_on))
        for other in relation.others
        if not is_on(found.get(other)) and not _is_fixed(other, found.get(other))
    }


def _is_fixed(name: str, option: Explained | None) -> bool:
    """Set by the recipe, or an option with a value: a requirement turns on neither."""
    return (option is not None and option.by_hand) or name.startswith("EXECUTORCH_SELECT_OPS_")


def _unmet(found: Mapping[str, Explained], table: OptionTable) -> Iterator[Blocker]:
    for relation in table.requires:
        for other in relation.others:
            if is_on(found.get(relation.if_on)) and not is_on(found.get(other)):
                yield _refused(found[relation.if_on], other)


def _conflicts(found: Mapping[str, Explained], table: OptionTable) -> Iterator[Blocker]:
    for relation in table.conflicts:
        for other in relation.others:
            if is_on(found.get(relation.if_on)) and is_on(found.get(other)):
                yield _conflict(found[relation.if_on], found[other])


def spelled_for(options: tuple[Explained, ...], table: OptionTable) -> tuple[Explained, ...]:
    """The options, by this release's names for them.

    Raises:
        BuildError: It does not know a derived option, which is a bug in etdeploy.
    """
    return tuple(_spelled(option, table) for option in options)


def is_on(option: Explained | None) -> bool:
    """Whether cmake reads the value as true: anything but its words for false."""
    if option is None or option.value is None:
        return False
    value = option.value.upper()
    return value not in _OFF and not value.endswith("-NOTFOUND")


def _spelled(option: Explained, table: OptionTable) -> Explained:
    if not option.name.startswith("EXECUTORCH_") or option.by_hand:
        return option
    name = table.name_for(option.name)
    if name is None:
        raise BuildError(
            f"etdeploy derived the option {option.name} because {option.reason}, and "
            f"{table.origin} has no such option",
            remedy="This is a bug in etdeploy, or a release of ExecuTorch that it does not support "
            "(1.3 to 1.5 are).\nUse another checkout: "
            "--set runtime.source=/path/to/executorch",
        )
    if name == option.name:
        return option
    reason = f"{option.reason}; {table.origin} calls {option.name} this"
    return option.model_copy(update={"name": name, "reason": reason})


def _text(value: str | bool | int) -> str:
    return (
        value
        if isinstance(value, str)
        else str(value).replace("True", "ON").replace("False", "OFF")
    )


def _override_reason(name: str, table: OptionTable) -> str:
    if not name.startswith("EXECUTORCH_") or name in table.names:
        return BY_HAND
    near = get_close_matches(name, table.names, n=1, cutoff=0.8)
    meant = f"; did you mean {near[0]}?" if near else ""
    return f"{BY_HAND}, though {table.origin} has no option of that name{meant}"


def _refused(option: Explained, other: str) -> Blocker:
    return Blocker(
        what=other,
        why=f"{option.name} is on ({option.reason}) and requires {other}, which is not",
        remedy=f"In runtime.cmake, set {other} or remove {option.name}.",
    )


def _conflict(one: Explained, other: Explained) -> Blocker:
    by_hand = [o.name for o in (one, other) if o.by_hand]
    remedy = (
        f"Remove {by_hand[0]} from runtime.cmake."
        if by_hand
        else "Change the recipe so that only one of them is derived."
    )
    return Blocker(
        what=f"{one.name} and {other.name}",
        why=f"{one.name} ({one.reason}) and {other.name} ({other.reason}) exclude each other",
        remedy=remedy,
    )
