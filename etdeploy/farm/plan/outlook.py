"""Puts together what a night would do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from etdeploy.cache.workspace import Workspace
from etdeploy.farm.model import Offer, Visit
from etdeploy.farm.plan.durations import Earlier, lasts, makespan_s
from etdeploy.farm.plan.model import Cell, Opening, Outlook, Refused, Seen
from etdeploy.farm.plan.pieces import look_up_classes, pieces_of
from etdeploy.farm.spec.matrix import missing, plan_night
from etdeploy.farm.spec.model import Farm, LoadedFarm
from etdeploy.farm.spec.window import opens

_OTHER_HOSTS = (
    "Devices of other hosts are known only while their workers are connected: this plan is about "
    "the devices of this machine."
)


def outlook_of(
    loaded: LoadedFarm,
    offers: Sequence[Offer],
    earlier: Earlier,
    now: datetime,
    workspace: Workspace,
) -> Outlook:
    """What a night of a farm would do.

    Args:
        loaded: The farm.
        offers: Devices that are there.
        earlier: What visits took before.
        now: With a time zone.
        workspace: The cache, which is only read.
    """
    farm = loaded.farm
    window = _opening(farm, now)
    plan = plan_night(farm, "night", offers, window.seconds if window else None)
    devices = {offer.identity: offer for offer in reversed(offers) if not offer.problem}
    looked, refused = look_up_classes(
        _devices_of(plan.visits, devices), loaded.recipes, workspace, farm.results, farm.apps
    )
    visits = _possible(plan.visits, refused, devices)
    expected_s = makespan_s(visits, earlier) if visits else None
    cells = _cells(visits, devices, earlier)
    return Outlook(
        farm=farm.name,
        devices=tuple(_seen(farm, offer) for offer in offers),
        cells=cells,
        pieces=pieces_of(looked),
        refused=tuple(refused),
        unsatisfied=plan.unsatisfied,
        visits=len(visits),
        expected_s=expected_s,
        guessed=any(not cell.each.measured for cell in cells),
        window=window,
        notes=tuple(_notes(farm, window, expected_s)),
    )


def _among(visit: Visit) -> tuple[str, ...]:
    return (visit.device,) if visit.device else visit.among


def _devices_of(
    visits: Sequence[Visit], devices: Mapping[str, Offer]
) -> dict[str, tuple[Offer, ...]]:
    """The devices of each recipe, by its label."""
    found: dict[str, dict[str, Offer]] = {}
    for visit in visits:
        found.setdefault(visit.recipe, {}).update({i: devices[i] for i in _among(visit)})
    return {label: tuple(known.values()) for label, known in found.items()}


def _possible(
    visits: Sequence[Visit], refused: Sequence[Refused], devices: Mapping[str, Offer]
) -> list[Visit]:
    """The visits for which something can be made, to the devices that it can be made for."""
    never = {(each.recipe, name) for each in refused for name in each.devices}
    found = []
    for visit in visits:
        left = tuple(i for i in _among(visit) if (visit.recipe, devices[i].name) not in never)
        if left:
            found.append(visit.model_copy(update={"among": left}))
    return found


def _cells(
    visits: Sequence[Visit], devices: Mapping[str, Offer], earlier: Earlier
) -> tuple[Cell, ...]:
    by_pair: dict[tuple[str, str], list[Visit]] = {}
    for visit in visits:
        by_pair.setdefault((visit.recipe, visit.group), []).append(visit)
    cells = []
    for (label, group), own in sorted(by_pair.items()):
        identities = tuple(dict.fromkeys(i for visit in own for i in visit.among))
        cells.append(
            Cell(
                recipe=label,
                group=group,
                devices=tuple(devices[i].name for i in identities),
                visits=len(own),
                each=lasts(label, identities, earlier),
            )
        )
    return tuple(cells)


def _seen(farm: Farm, offer: Offer) -> Seen:
    facts = offer.facts
    return Seen(
        name=offer.name,
        host=offer.host,
        target=facts.target,
        model=facts.model,
        soc=facts.soc,
        os=facts.os,
        pools=offer.pools,
        groups=tuple(name for name, group in farm.groups.items() if not missing(group, offer)),
        problem=offer.problem,
        remedy=offer.remedy if offer.problem else "",
    )


def _opening(farm: Farm, now: datetime) -> Opening | None:
    if farm.window is None:
        return None
    start, end = opens(farm.window, now)
    return Opening(
        opens=start.isoformat(timespec="minutes"),
        closes=end.isoformat(timespec="minutes"),
        # What is left of a window that is open now.
        seconds=(end - max(start, now)).total_seconds(),
    )


def _notes(farm: Farm, window: Opening | None, expected_s: float | None) -> Iterator[str]:
    if farm.hosts is not None:
        yield _OTHER_HOSTS
    if window and expected_s is not None and expected_s > window.seconds:
        yield (
            "The night does not fit into its window: what has not begun when it closes is "
            "reported as missed. Take fewer repeats, recipes or devices, or a longer window."
        )
