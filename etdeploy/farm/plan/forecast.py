"""Puts together what a night would do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from etdeploy.cache.folder import CacheKind
from etdeploy.cache.workspace import Workspace
from etdeploy.core.console import count
from etdeploy.core.errors import EtdeployError
from etdeploy.farm.model import Offer, Visit
from etdeploy.farm.plan.model import (
    DiscoveredDevice,
    Lasts,
    MatrixCell,
    MeasurementWindow,
    Outlook,
    Piece,
    Refused,
)
from etdeploy.farm.spec.conditions import opens
from etdeploy.farm.spec.matrix import missing, plan_night
from etdeploy.farm.spec.model import Farm, LoadedFarm
from etdeploy.farm.work.prepare import classes_of, member_of
from etdeploy.graph.many.run import look_up, refused_of
from etdeploy.graph.pipeline import expected_runner, export_work
from etdeploy.graph.resolve import Resolved
from etdeploy.recipe.load import LoadedRecipe
from etdeploy.targets.platforms import find_target

if TYPE_CHECKING:
    from etdeploy.history.store.store import Store


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
) -> tuple[MatrixCell, ...]:
    by_pair: dict[tuple[str, str], list[Visit]] = {}
    for visit in visits:
        by_pair.setdefault((visit.recipe, visit.group), []).append(visit)
    cells = []
    for (label, group), own in sorted(by_pair.items()):
        identities = tuple(dict.fromkeys(i for visit in own for i in visit.among))
        cells.append(
            MatrixCell(
                recipe=label,
                group=group,
                devices=tuple(devices[i].name for i in identities),
                visits=len(own),
                each=lasts(label, identities, earlier),
            )
        )
    return tuple(cells)


def _seen(farm: Farm, offer: Offer) -> DiscoveredDevice:
    facts = offer.facts
    return DiscoveredDevice(
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


def _opening(farm: Farm, now: datetime) -> MeasurementWindow | None:
    if farm.window is None:
        return None
    start, end = opens(farm.window, now)
    return MeasurementWindow(
        opens=start.isoformat(timespec="minutes"),
        closes=end.isoformat(timespec="minutes"),
        # What is left of a window that is open now.
        seconds=(end - max(start, now)).total_seconds(),
    )


def _notes(farm: Farm, window: MeasurementWindow | None, expected_s: float | None) -> Iterator[str]:
    if farm.hosts is not None:
        yield _OTHER_HOSTS
    if window and expected_s is not None and expected_s > window.seconds:
        yield (
            "The night does not fit into its window: what has not begun when it closes is "
            "reported as missed. Take fewer repeats, recipes or devices, or a longer window."
        )


@dataclass(frozen=True)
class Looked:
    """A recipe for a class of devices, with what was looked up for it."""

    recipe: str
    shown: str
    resolved: Resolved


def look_up_classes(
    wanted: Mapping[str, Sequence[Offer]],
    recipes: Mapping[str, LoadedRecipe],
    workspace: Workspace,
    output: Path,
    apps: Mapping[str, Path],
) -> tuple[list[Looked], list[Refused]]:
    """Looks up what each recipe needs for each class of its devices, and what speaks against it.

    Just what a night looks up and refuses before it makes anything.
    """
    classes = classes_of(wanted)
    members = [
        member_of(label, recipes[label], offers[0], output, workspace, apps.get(label))
        for (label, _), offers in classes.items()
    ]
    devices = dict(zip((member.pair for member in members), classes.values(), strict=True))
    ready, refused = look_up(members)
    refused += refused_of(ready)
    out = {end.member.pair for end in refused}
    return (
        [
            Looked(each.member.pair.recipe, each.member.pair.device, each.resolved)
            for each in ready
            if each.member.pair not in out
        ],
        [_refused(end.member.pair.recipe, devices[end.member.pair], end.error) for end in refused],
    )


def pieces_of(looked: Iterable[Looked]) -> tuple[Piece, ...]:
    """Each program and each runner once, with those whom it is for."""
    found: dict[tuple[str, str], list[tuple[Looked, bool | None]]] = {}
    for each in looked:
        for step, work, cached in _work(each.resolved):
            found.setdefault((step, work), []).append((each, cached))
    return tuple(
        Piece(
            step="export" if step == "export" else "build",
            recipes=tuple(dict.fromkeys(each.recipe for each, _ in users)),
            classes=tuple(dict.fromkeys(each.shown for each, _ in users)),
            cached=users[0][1],
        )
        for step in ("export", "build")
        for (kind, _), users in found.items()
        if kind == step
    )


def _work(resolved: Resolved) -> Iterator[tuple[str, str, bool | None]]:
    if not resolved.job.loaded.recipe.model.program:
        yield "export", export_work(resolved), resolved.exported is not None
    if resolved.job.app is None or resolved.job.app.given is None:
        yield "build", f"{expected_runner(resolved)} {_app_of(resolved)}", _is_built(resolved)


def _app_of(resolved: Resolved) -> str:
    """An app carries its program, so each has its own."""
    return export_work(resolved) if resolved.job.app else ""


def _is_built(resolved: Resolved) -> bool | None:
    """Whether the cache has the runner; None where only the export can tell, and for apps."""
    from etdeploy.provider.checkout import Libraries
    from etdeploy.provider.wheel import known_wheel
    from etdeploy.runner.builder import runner_key

    job, plan, checkout = resolved.job, resolved.plan, resolved.checkout
    if plan.provisional or job.app:
        return None
    wheel = None
    if resolved.sources is None:
        wheel = known_wheel(find_target(plan.build_target), job.host, job.workspace)
    if checkout is None and wheel is None:
        return False
    key = runner_key(plan, Libraries(checkout=checkout, wheel=wheel), job.host, _names(resolved))
    return job.workspace.entry(CacheKind.RUNNERS, key).is_sound()


def _names(resolved: Resolved) -> tuple[str, ...]:
    """The operators that are searched for in a runner with the recipe's own kernels."""
    from etdeploy.custom_ops.kernels import names_to_find

    finished = resolved.job.loaded.recipe.model.program
    program = resolved.exported.path if resolved.exported else finished and Path(finished)
    return names_to_find(resolved.custom_ops, program or None)


def _refused(label: str, offers: Sequence[Offer], error: Exception | None) -> Refused:
    told = error if isinstance(error, EtdeployError) else None
    return Refused(
        recipe=label,
        devices=tuple(offer.name for offer in offers),
        reason=told.message if told else str(error),
        remedy=told.remedy if told else None,
    )


# By (recipe label, identity): seconds of earlier runs.
Earlier = Mapping[tuple[str, str], Sequence[float]]
# A recipe of usual size with its starts, cooling down in between.
_GUESS_S = 120.0
_RUNS = 5
_NIGHTS = 5


def earlier_seconds(
    store: Store, names: Mapping[str, str], offers: Iterable[Offer]
) -> dict[tuple[str, str], list[float]]:
    """What the passes of the latest runs of each pair took in the history.

    Args:
        store: The history.
        names: The recipes' names by their labels.
        offers: The devices.
    """
    from etdeploy.history.series import DeviceIdentity
    from etdeploy.history.store.store import Filter

    identities = {offer.identity: DeviceIdentity.of(offer.facts) for offer in offers}
    found: dict[tuple[str, str], list[float]] = {}
    for name in set(names.values()):
        for known in store.series(Filter(recipe=name)):
            own = [i for i, device in identities.items() if device == known.series.device]
            if not own:
                continue
            entries = store.entries(Filter(series=known.series.key), _RUNS)
            took = [_seconds(store.content(entry.run_id)) for entry in entries]
            for label in (label for label, its in names.items() if its == name):
                for identity in own:
                    found.setdefault((label, identity), []).extend(filter(None, took))
    return found


def visited_seconds(store: Store, farm: str) -> dict[tuple[str, str], list[float]]:
    """What visits took in the latest nights of a farm: push, waiting and measurement.

    Args:
        store: The history.
        farm: Its name.
    """
    from etdeploy.history.store.nights import nights_of, visits_of

    found: dict[tuple[str, str], list[float]] = {}
    with store.transaction() as connection:
        visits = [
            visit
            for night in nights_of(connection, farm, _NIGHTS)
            for visit in visits_of(connection, night.id)
        ]
    for visit in visits:
        for attempt in visit.attempts:
            if attempt.counts and attempt.content:
                pair = (visit.content["recipe"], attempt.identity)
                found.setdefault(pair, []).append(float(attempt.content["seconds"]))
    return found


def _seconds(record: Mapping[str, Any] | None) -> float:
    """The wall time of a record's passes; 0 where it does not say."""
    passes = record.get("passes") if record else None
    return sum(float(each["seconds"]) for each in passes.values()) if passes else 0.0


def lasts(recipe: str, devices: Sequence[str], earlier: Earlier) -> Lasts:
    """How long one visit takes."""
    own = [s for device in devices for s in earlier.get((recipe, device), ())]
    if own:
        return Lasts(
            seconds=median(own), basis=f"median of {count(len(own), 'run')}", measured=True
        )
    alike = [s for (label, _), took in earlier.items() if label == recipe for s in took]
    if alike:
        return Lasts(seconds=median(alike), basis="guess, from other devices", measured=False)
    everything = [s for took in earlier.values() for s in took]
    if everything:
        return Lasts(seconds=median(everything), basis="guess, from other recipes", measured=False)
    return Lasts(seconds=_GUESS_S, basis="guess, nothing was measured yet", measured=False)


def makespan_s(visits: Iterable[Visit], earlier: Earlier) -> float:
    """From the beginning of the night to the end of its last visit, every device at work at once.

    A visit that may go to several devices goes to the one that is free first. A guess of its own
    accord: nothing fails, and no gate has to be waited for.
    """
    free_s: dict[str, float] = {}
    for visit in visits:
        among = (visit.device,) if visit.device else visit.among
        device = min(among, key=lambda identity: free_s.get(identity, 0.0))
        begins_s = max(visit.not_before_s, free_s.get(device, 0.0))
        free_s[device] = begins_s + lasts(visit.recipe, (device,), earlier).seconds
    return max(free_s.values(), default=0.0)
