"""Which recipe is measured on which device, how often and in which order: pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import chain, groupby
from typing import NamedTuple

from etdeploy.core.console import count
from etdeploy.core.values import Value
from etdeploy.farm.model import AvailableDevice, Visit, is_network_name
from etdeploy.farm.spec.conditions import condition_text, holds, is_pattern, matches, reported_text
from etdeploy.farm.spec.model import Condition, DeviceGroup, Farm
from etdeploy.farm.spec.written import Matrix, MatrixEntry

Pair = tuple[str, str]
_MOST_SHOWN = 8
_MOST_NEAR = 3


class Unsatisfied(Value):
    """A pair of the matrix, or a part of it, that no device can be measured for.

    Attributes:
        device: The name of the device that is expected; empty where any that matches would do.
    """

    recipe: str
    group: str
    reason: str
    device: str = ""


class NightPlan(Value):
    """What a night measures, in the order in which it begins, and what it cannot."""

    visits: tuple[Visit, ...]
    unsatisfied: tuple[Unsatisfied, ...]


def select_pairs(matrix: Matrix, labels: Sequence[str], groups: Sequence[str]) -> tuple[Pair, ...]:
    """Select the pairs of a matrix: `exclude` removes, then `include` adds."""
    everything = [(label, group) for label in labels for group in groups]
    return tuple(
        pair
        for pair in everything
        if any(entry_matches(entry, pair) for entry in matrix.include)
        or (
            matrix.default == "all"
            and not any(entry_matches(entry, pair) for entry in matrix.exclude)
        )
    )


def entry_matches(entry: MatrixEntry, pair: Pair) -> bool:
    """Whether an entry of the matrix is about a pair."""
    return matches(pair[0], entry.recipe or "*") and matches(pair[1], entry.device or "*")


def plan_night(
    farm: Farm, night: str, offers: Sequence[AvailableDevice], window_s: float | None
) -> NightPlan:
    """Plan the visits of a night.

    A device that several hosts offer is one. Where several groups without `take` ask for the same
    recipe on the same device, it is measured for the first of them.
    """
    names = {offer.identity: offer.name for offer in offers if not offer.problem}
    found = {
        name: tuple(sorted({o.identity for o in offers if not o.problem and not _unmet(group, o)}))
        for name, group in farm.groups.items()
    }
    reasons = {
        name: tuple(_reasons(farm, group, found[name], offers))
        for name, group in farm.groups.items()
    }
    return NightPlan(
        visits=tuple(_visits(farm, night, _measurements(farm, found), names, window_s)),
        unsatisfied=tuple(
            Unsatisfied(recipe=label, group=group, reason=reason, device=device)
            for label, group in farm.pairs
            for reason, device in reasons[group]
        ),
    )


def matches_group(group: DeviceGroup, offer: AvailableDevice) -> bool:
    """Whether a device meets all conditions of a group."""
    return not _unmet(group, offer)


def _unmet(group: DeviceGroup, offer: AvailableDevice) -> list[Condition]:
    return [condition for condition in group.conditions if not holds(condition, offer)]


class _Measurement(NamedTuple):
    """What each repeat measures once: a recipe on a device, or on any of several."""

    recipe: str
    group: str
    device: str | None
    among: tuple[str, ...]


def _measurements(farm: Farm, found: Mapping[str, tuple[str, ...]]) -> Iterator[_Measurement]:
    known: set[Pair] = set()
    for label, group in farm.pairs:
        take = farm.groups[group].take
        if take is not None:
            among = found[group]
            yield from (_Measurement(label, group, None, among),) * min(take, len(among))
            continue
        for identity in found[group]:
            if (label, identity) not in known:
                known.add((label, identity))
                yield _Measurement(label, group, identity, (identity,))


def _visits(
    farm: Farm,
    night: str,
    measurements: Iterable[_Measurement],
    names: Mapping[str, str],
    window_s: float | None,
) -> Iterator[Visit]:
    """Each repeat begins with the next recipe, so that none always follows the same one."""
    by_recipe = [list(each) for _, each in groupby(measurements, key=lambda one: one.recipe)]
    apart_s = window_s / farm.repeats if farm.spread and window_s else 0.0
    number = 0
    for repeat in range(farm.repeats):
        first = repeat % max(1, len(by_recipe))
        for one in chain.from_iterable(by_recipe[first:] + by_recipe[:first]):
            number += 1
            yield Visit(
                id=f"{night}-{number}",
                **one._asdict(),
                name=names[one.device] if one.device else "",
                repeat=repeat + 1,
                not_before_s=repeat * apart_s,
            )


def _reasons(
    farm: Farm, group: DeviceGroup, found: Sequence[str], offers: Sequence[AvailableDevice]
) -> Iterator[tuple[str, str]]:
    """Why a group is not measured, or not with all of its devices, and the device that is meant."""
    broken = [o for o in offers if o.problem and o.identity not in found and not _unmet(group, o)]
    for offer in broken:
        yield f"{offer.name} cannot be used: {offer.problem}", offer.name
    absent = [name for name in _expected_names(farm, group) if not _is_offered(name, offers)]
    if absent:
        yield from ((_no_such_device(name, offers), name) for name in absent)
    elif not found and not broken:
        yield _no_match(group, offers), ""
    for offer in {o.identity: o for o in offers if o.identity in found and not o.problem}.values():
        # By cable and by network it is one phone; two addresses with one serial number may be two.
        if offer.facts.serial and is_network_name(offer.name):
            others = [_renamed(offer, name) for name in offer.also if is_network_name(name)]
            yield from ((_same_device(o.name, offer), "") for o in others if not _unmet(group, o))
    if group.take is not None and 0 < len(found) < group.take:
        there = "1 device matches" if len(found) == 1 else f"{len(found)} devices match"
        yield f"it takes {count(group.take, 'device')}, and {there}", ""


def _expected_names(farm: Farm, group: DeviceGroup) -> Iterator[str]:
    """The devices that a group means by name: its own, else all of its pool.

    Of a device that is absent, only the name is known: with other conditions, a pool says nothing.
    """
    keys = {condition.key for condition in group.conditions}
    for condition in group.conditions:
        if condition.key == "name" and not is_pattern(condition.value):
            yield condition.value
        elif keys == {"pool"} and group.take is None:
            yield from farm.pools.get(condition.value, ())


def _is_offered(name: str, offers: Sequence[AvailableDevice]) -> bool:
    return any(matches(name, known) for offer in offers for known in (offer.name, *offer.also))


def _no_match(group: DeviceGroup, offers: Sequence[AvailableDevice]) -> str:
    """Why no device matches: an unknown name, or the conditions that the nearest devices miss."""
    if not offers:
        return "no device is connected"
    for condition in group.conditions:
        named = condition.key == "name" and not is_pattern(condition.value)
        if named and not any(holds(condition, offer) for offer in offers):
            return _no_such_device(condition.value, offers)
    lacking = sorted(
        ((_unmet(group, o), o) for o in {o.identity: o for o in offers}.values()),
        key=lambda pair: (len(pair[0]), pair[1].name),
    )
    near = [
        f"{offer.name} has {', '.join(_has(condition, offer) for condition in lacks)}"
        for lacks, offer in lacking
        if len(lacks) == len(lacking[0][0])
    ]
    wanted = ", ".join(map(condition_text, group.conditions))
    return f"no device has {wanted}: {'; '.join(near[:_MOST_NEAR])}"


def _has(condition: Condition, offer: AvailableDevice) -> str:
    key = "memory" if condition.key == "memory_bytes" else condition.key
    return f"{key} {reported_text(condition.key, offer)}"


def _renamed(offer: AvailableDevice, name: str) -> AvailableDevice:
    facts = offer.facts.model_copy(update={"name": name})
    return offer.model_copy(update={"name": name, "facts": facts})


def _same_device(name: str, offer: AvailableDevice) -> str:
    if not offer.facts.serial:
        return f"{name} is the same device as {offer.name}, which is measured by that name"
    return (
        f"{name} reports the same serial number as {offer.name}: both count as one device, and "
        f"only {offer.name} is measured (phones with one serial number can be distinguished only "
        "by USB, plugged into one host)"
    )


def _no_such_device(name: str, offers: Sequence[AvailableDevice]) -> str:
    if not offers:
        return f"there is no device {name}: none is connected"
    for offer in offers:
        if name in offer.also:
            return _same_device(name, offer)
    there = sorted({offer.name for offer in offers})
    near = get_close_matches(name, there, n=1)
    more = f" and {len(there) - _MOST_SHOWN} more" if len(there) > _MOST_SHOWN else ""
    hint = f": did you mean {near[0]}?" if near else ""
    return f"there is no device {name}{hint} (there are {', '.join(there[:_MOST_SHOWN])}{more})"
