"""Which recipe is measured on which device, how often and in which order: pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import groupby
from typing import NamedTuple

from etdeploy.core.console import count
from etdeploy.core.values import Value
from etdeploy.farm.model import Offer, Visit, is_network_name
from etdeploy.farm.spec.conditions import holds, is_pattern, matches, shown, told
from etdeploy.farm.spec.model import Condition, DeviceGroup, Farm
from etdeploy.farm.spec.written import Matrix, MatrixEntry

Pair = tuple[str, str]
_MOST_SHOWN = 8
_MOST_NEAR = 3


class Unsatisfied(Value):
    """A pair of the matrix, or a part of it, that no device can be measured for."""

    recipe: str
    group: str
    reason: str


class NightPlan(Value):
    """What a night measures, in the order in which it begins, and what it cannot."""

    visits: tuple[Visit, ...]
    unsatisfied: tuple[Unsatisfied, ...]


def pairs_of(matrix: Matrix, labels: Sequence[str], groups: Sequence[str]) -> tuple[Pair, ...]:
    """The pairs of a matrix: `exclude` takes out, then `include` adds."""
    everything = [(label, group) for label in labels for group in groups]
    return tuple(
        pair
        for pair in everything
        if any(names(entry, pair) for entry in matrix.include)
        or (matrix.default == "all" and not any(names(entry, pair) for entry in matrix.exclude))
    )


def names(entry: MatrixEntry, pair: Pair) -> bool:
    """Whether an entry of the matrix is about a pair."""
    return matches(pair[0], entry.recipe or "*") and matches(pair[1], entry.device or "*")


def plan_night(
    farm: Farm, night: str, offers: Sequence[Offer], window_s: float | None
) -> NightPlan:
    """The visits of a night.

    A device that several hosts offer is one. Where several groups without `take` ask for the same
    recipe on the same device, it is measured for the first of them.

    Args:
        farm: What is wanted.
        night: Its id.
        offers: Devices that are plugged in.
        window_s: How long measurements may begin; None for any time.
    """
    usable = [offer for offer in offers if not offer.problem]
    found = {
        name: sorted({offer.identity for offer in usable if not missing(group, offer)})
        for name, group in farm.groups.items()
    }
    reasons = {
        name: tuple(_reasons(group, found[name], offers)) for name, group in farm.groups.items()
    }
    wishes = [wish for pair in farm.pairs for wish in _wishes(farm, pair, found)]
    return NightPlan(
        visits=tuple(
            _visits(farm, night, _once(wishes), {o.identity: o.name for o in usable}, window_s)
        ),
        unsatisfied=tuple(
            Unsatisfied(recipe=label, group=group, reason=reason)
            for label, group in farm.pairs
            for reason in reasons[group]
        ),
    )


def missing(group: DeviceGroup, offer: Offer) -> list[Condition]:
    """The conditions of a group that a device does not meet."""
    return [condition for condition in group.conditions if not holds(condition, offer)]


class _Wish(NamedTuple):
    """What is measured once in each repeat: on a device, or on any of several."""

    recipe: str
    group: str
    device: str | None
    among: tuple[str, ...]


def _wishes(farm: Farm, pair: Pair, found: dict[str, list[str]]) -> Iterator[_Wish]:
    label, group = pair
    among = tuple(found[group])
    take = farm.groups[group].take
    if take is None:
        yield from (_Wish(label, group, identity, (identity,)) for identity in among)
    else:
        yield from (_Wish(label, group, None, among) for _ in range(min(take, len(among))))


def _once(wishes: Iterable[_Wish]) -> list[_Wish]:
    """Without those for a recipe on a device that an earlier group asked for."""
    known: set[Pair] = set()
    kept = []
    for wish in wishes:
        if wish.device is None:
            kept.append(wish)
        elif (wish.recipe, wish.device) not in known:
            known.add((wish.recipe, wish.device))
            kept.append(wish)
    return kept


def _visits(
    farm: Farm,
    night: str,
    wishes: Sequence[_Wish],
    names: Mapping[str, str],
    window_s: float | None,
) -> Iterator[Visit]:
    """Each repeat begins with the next recipe, so that none always follows the same one."""
    by_recipe = [list(each) for _, each in groupby(wishes, key=lambda wish: wish.recipe)]
    apart_s = window_s / farm.repeats if farm.spread and window_s else 0.0
    number = 0
    for repeat in range(farm.repeats):
        first = repeat % max(1, len(by_recipe))
        turned = by_recipe[first:] + by_recipe[:first]
        for wish in (wish for each in turned for wish in each):
            number += 1
            yield Visit(
                id=f"{night}-{number}",
                **wish._asdict(),
                name=names[wish.device] if wish.device else "",
                repeat=repeat + 1,
                not_before_s=repeat * apart_s,
            )


def _reasons(group: DeviceGroup, found: Sequence[str], offers: Sequence[Offer]) -> Iterator[str]:
    """Why a group is not measured, or not as it asks."""
    broken = [o for o in offers if o.problem and o.identity not in found and not missing(group, o)]
    for offer in broken:
        yield f"{offer.name} cannot be used: {offer.problem}"
    if not found and not broken:
        yield _nothing(group, offers)
    for offer in {o.identity: o for o in offers if o.identity in found and not o.problem}.values():
        # By cable and by network it is one phone; two addresses with one serial number may be two.
        if offer.facts.serial and is_network_name(offer.name):
            others = [_named(offer, name) for name in offer.also if is_network_name(name)]
            yield from (_same(o.name, offer) for o in others if not missing(group, o))
    if group.take is not None and 0 < len(found) < group.take:
        there = "1 device matches" if len(found) == 1 else f"{len(found)} devices match"
        yield f"it takes {count(group.take, 'device')}, and {there}"


def _nothing(group: DeviceGroup, offers: Sequence[Offer]) -> str:
    """Why no device matches: a name that there is not, or what those that come near lack."""
    if not offers:
        return "no device is connected"
    for condition in group.conditions:
        named = condition.key == "name" and not is_pattern(condition.value)
        if named and not any(holds(condition, offer) for offer in offers):
            return _no_such(condition.value, offers)
    lacking = sorted(
        ((missing(group, offer), offer) for offer in _distinct(offers)),
        key=lambda pair: (len(pair[0]), pair[1].name),
    )
    near = [
        f"{offer.name} has {', '.join(_has(condition, offer) for condition in lacks)}"
        for lacks, offer in lacking
        if len(lacks) == len(lacking[0][0])
    ]
    wanted = ", ".join(map(shown, group.conditions))
    return f"no device has {wanted}: {'; '.join(near[:_MOST_NEAR])}"


def _has(condition: Condition, offer: Offer) -> str:
    key = "memory" if condition.key == "memory_bytes" else condition.key
    return f"{key} {told(condition.key, offer)}"


def _named(offer: Offer, name: str) -> Offer:
    facts = offer.facts.model_copy(update={"name": name})
    return offer.model_copy(update={"name": name, "facts": facts})


def _same(name: str, offer: Offer) -> str:
    if not offer.facts.serial:
        return f"{name} is the same device as {offer.name}, which is measured by that name"
    return (
        f"{name} reports the same serial number as {offer.name}, so both are taken for one device, "
        f"and only {offer.name} is measured (phones that share a serial number are told apart only "
        "by USB, when all of them are plugged into one host)"
    )


def _no_such(name: str, offers: Sequence[Offer]) -> str:
    for offer in offers:
        if name in offer.also:
            return _same(name, offer)
    there = sorted({offer.name for offer in offers})
    near = get_close_matches(name, there, n=1)
    more = f" and {len(there) - _MOST_SHOWN} more" if len(there) > _MOST_SHOWN else ""
    hint = f": did you mean {near[0]}?" if near else ""
    return f"there is no device {name}{hint} (there are {', '.join(there[:_MOST_SHOWN])}{more})"


def _distinct(offers: Iterable[Offer]) -> list[Offer]:
    return list({offer.identity: offer for offer in offers}.values())
