"""The forecast of a night: what it measures, exports and builds, how long that takes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

from etdeploy.cache.folder import CacheKind
from etdeploy.cache.workspace import Workspace
from etdeploy.core.console import count
from etdeploy.core.errors import EtdeployError
from etdeploy.core.layout import fit, table
from etdeploy.core.values import Value
from etdeploy.farm.model import AvailableDevice, Visit
from etdeploy.farm.spec.conditions import find_opening
from etdeploy.farm.spec.matrix import Unsatisfied, matches_group, plan_night
from etdeploy.farm.spec.model import Farm, LoadedFarm
from etdeploy.farm.work.prepare import group_by_class, make_member
from etdeploy.graph.pipeline import expected_runner, export_work
from etdeploy.graph.resolve import Resolved
from etdeploy.graph.run import look_up, refused_of
from etdeploy.plan.requirements import some
from etdeploy.recipe.load import LoadedRecipe
from etdeploy.targets.platforms import find_target

if TYPE_CHECKING:
    from etdeploy.history.store.store import Store


class DiscoveredDevice(Value):
    """A connected device, with the reason why it cannot be used, if there is one."""

    name: str
    host: str
    target: str
    model: str | None
    soc: str | None
    os: str | None
    pools: tuple[str, ...]
    groups: tuple[str, ...]
    problem: str = ""
    remedy: str = ""


class DurationEstimate(Value):
    """Wall time, and in words what it rests on."""

    seconds: float
    basis: str
    measured: bool
    """Whether the same pair was measured before."""


class MatrixCell(Value):
    """A recipe on a group, with its devices; with `take`, those that are possible."""

    recipe: str
    group: str
    devices: tuple[str, ...]
    visits: int
    each: DurationEstimate


class NightArtifact(Value):
    """A program, a runner or an app that is made once for the night."""

    step: Literal["export", "build"]
    recipes: tuple[str, ...]
    classes: tuple[str, ...]
    """The devices that need it, as target and SoC."""
    cached: bool | None
    """None where only the export can tell."""


class Refused(Value):
    """Why a recipe cannot be exported or built for a class of devices."""

    recipe: str
    devices: tuple[str, ...]
    reason: str
    remedy: str | None


class MeasurementWindow(Value):
    """When measurements may begin, as ISO 8601 with the offset of the window's time zone."""

    opens: str
    closes: str
    seconds: float


class Forecast(Value):
    """What `etdeploy farm plan` shows; its JSON form is an interface.

    Attributes:
        cells: The matrix; pairs without a device are in `unsatisfied` alone.
        expected_s: From the first visit to the last, all devices at work; None for no visits.
        guessed: Whether a part of that is a guess.
        window: None for any time.
    """

    farm: str
    devices: tuple[DiscoveredDevice, ...]
    cells: tuple[MatrixCell, ...]
    pieces: tuple[NightArtifact, ...]
    refused: tuple[Refused, ...]
    unsatisfied: tuple[Unsatisfied, ...]
    visits: int
    expected_s: float | None
    guessed: bool
    window: MeasurementWindow | None
    notes: tuple[str, ...]


# By (recipe label, identity): seconds of earlier runs.
Earlier = Mapping[tuple[str, str], Sequence[float]]
# A recipe of usual size with its starts, cooling down in between.
_GUESS_S = 120.0
_RUNS = 5
_NIGHTS = 5


def forecast_night(
    loaded: LoadedFarm,
    offers: Sequence[AvailableDevice],
    earlier: Earlier,
    now: datetime,
    workspace: Workspace,
) -> Forecast:
    """Forecast a night on these devices; the cache is only read, and `now` has a time zone."""
    farm = loaded.farm
    window = _opening(farm, now)
    plan = plan_night(farm, "night", offers, window.seconds if window else None)
    devices = {offer.identity: offer for offer in reversed(offers) if not offer.problem}
    looked, refused = resolve_classes(
        _devices_of(plan.visits, devices), loaded.recipes, workspace, farm.results, farm.apps
    )
    visits = _possible(plan.visits, refused, devices)
    expected_s = makespan_s(visits, earlier) if visits else None
    cells = tuple(_cells(visits, devices, earlier))
    return Forecast(
        farm=farm.name,
        devices=tuple(_discovered(farm, offer) for offer in offers),
        cells=cells,
        pieces=list_artifacts(looked),
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
    visits: Sequence[Visit], devices: Mapping[str, AvailableDevice]
) -> dict[str, tuple[AvailableDevice, ...]]:
    """The devices of each recipe, by its label."""
    found: dict[str, dict[str, AvailableDevice]] = {}
    for visit in visits:
        found.setdefault(visit.recipe, {}).update({i: devices[i] for i in _among(visit)})
    return {label: tuple(known.values()) for label, known in found.items()}


def _possible(
    visits: Sequence[Visit], refused: Sequence[Refused], devices: Mapping[str, AvailableDevice]
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
    visits: Sequence[Visit], devices: Mapping[str, AvailableDevice], earlier: Earlier
) -> Iterator[MatrixCell]:
    by_pair: dict[tuple[str, str], list[Visit]] = {}
    for visit in visits:
        by_pair.setdefault((visit.recipe, visit.group), []).append(visit)
    for (label, group), own in sorted(by_pair.items()):
        identities = tuple(dict.fromkeys(i for visit in own for i in visit.among))
        names = tuple(devices[i].name for i in identities)
        each = estimate_duration(label, identities, earlier)
        yield MatrixCell(recipe=label, group=group, devices=names, visits=len(own), each=each)


def _discovered(farm: Farm, offer: AvailableDevice) -> DiscoveredDevice:
    facts = offer.facts
    groups = tuple(name for name, group in farm.groups.items() if matches_group(group, offer))
    return DiscoveredDevice(
        name=offer.name, host=offer.host, target=facts.target, model=facts.model, soc=facts.soc,
        os=facts.os, pools=offer.pools, groups=groups, problem=offer.problem,
        remedy=offer.remedy if offer.problem else "",
    )  # fmt: skip


def _opening(farm: Farm, now: datetime) -> MeasurementWindow | None:
    if farm.window is None:
        return None
    start, end = find_opening(farm.window, now)
    return MeasurementWindow(
        opens=start.isoformat(timespec="minutes"),
        closes=end.isoformat(timespec="minutes"),
        # What is left of a window that is open now.
        seconds=(end - max(start, now)).total_seconds(),
    )


def _notes(farm: Farm, window: MeasurementWindow | None, expected_s: float | None) -> Iterator[str]:
    if farm.hosts is not None:
        yield (
            "This plan has the devices of this machine only: those of other hosts are known while "
            "their workers are connected."
        )
    if window and expected_s is not None and expected_s > window.seconds:
        yield (
            "The night is longer than its window: visits that have not begun when it closes are "
            "missed. Take fewer repeats, recipes or devices, or a longer window."
        )


@dataclass(frozen=True)
class ResolvedClass:
    """A recipe, resolved for a class of devices."""

    recipe: str
    shown: str
    resolved: Resolved


def resolve_classes(
    wanted: Mapping[str, Sequence[AvailableDevice]],
    recipes: Mapping[str, LoadedRecipe],
    workspace: Workspace,
    output: Path,
    apps: Mapping[str, Path],
) -> tuple[list[ResolvedClass], list[Refused]]:
    """Resolve each recipe for each class of its devices, as a night does at its start."""
    classes = group_by_class(wanted)
    members = [
        make_member(label, recipes[label], offers[0], output, workspace, apps.get(label))
        for (label, _), offers in classes.items()
    ]
    devices = dict(zip((member.pair for member in members), classes.values(), strict=True))
    ready, refused = look_up(members)
    refused += refused_of(ready)
    out = {end.member.pair for end in refused}
    return (
        [
            ResolvedClass(each.member.pair.recipe, each.member.pair.device, each.resolved)
            for each in ready
            if each.member.pair not in out
        ],
        [_refused(end.member.pair.recipe, devices[end.member.pair], end.error) for end in refused],
    )


def list_artifacts(looked: Iterable[ResolvedClass]) -> tuple[NightArtifact, ...]:
    """Each program and each runner once, with those whom it is for."""
    found: dict[tuple[str, str], list[tuple[ResolvedClass, bool | None]]] = {}
    for each in looked:
        for step, work, cached in _work(each.resolved):
            found.setdefault((step, work), []).append((each, cached))
    return tuple(
        NightArtifact(
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
        # An app contains its program, so each program has another one.
        app = export_work(resolved) if resolved.job.app else ""
        yield "build", f"{expected_runner(resolved)} {app}", _is_built(resolved)


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
    here = Path(finished) if finished and Path(finished).is_file() else None
    program = resolved.exported.path if resolved.exported else here
    return names_to_find(resolved.custom_ops, program)


def _refused(label: str, offers: Sequence[AvailableDevice], error: Exception | None) -> Refused:
    told = error if isinstance(error, EtdeployError) else None
    return Refused(
        recipe=label,
        devices=tuple(offer.name for offer in offers),
        reason=told.message if told else str(error),
        remedy=told.remedy if told else None,
    )


def earlier_seconds(
    store: Store, names: Mapping[str, str], offers: Iterable[AvailableDevice]
) -> dict[tuple[str, str], list[float]]:
    """Return the seconds of the latest runs of each pair; `names` are the recipes' by label."""
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
    """Return the seconds of visits in the farm's latest nights: push, waiting, measurement."""
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


def estimate_duration(recipe: str, devices: Sequence[str], earlier: Earlier) -> DurationEstimate:
    """How long one visit takes."""
    own = [s for device in devices for s in earlier.get((recipe, device), ())]
    if own:
        return DurationEstimate(
            seconds=median(own), basis=f"median of {count(len(own), 'run')}", measured=True
        )
    alike = [s for (label, _), took in earlier.items() if label == recipe for s in took]
    if alike:
        seconds, basis = median(alike), "guess, from other devices"
    elif everything := [s for took in earlier.values() for s in took]:
        seconds, basis = median(everything), "guess, from other recipes"
    else:
        seconds, basis = _GUESS_S, "guess, nothing was measured yet"
    return DurationEstimate(seconds=seconds, basis=basis, measured=False)


def makespan_s(visits: Iterable[Visit], earlier: Earlier) -> float:
    """From the beginning of the night to the end of its last visit, every device at work at once.

    A visit that may go to several devices goes to the one that is free first; nothing fails, and
    every gate is open.
    """
    free_s: dict[str, float] = {}
    for visit in visits:
        device = min(_among(visit), key=lambda identity: free_s.get(identity, 0.0))
        begins_s = max(visit.not_before_s, free_s.get(device, 0.0))
        free_s[device] = begins_s + estimate_duration(visit.recipe, (device,), earlier).seconds
    return max(free_s.values(), default=0.0)


def forecast_text(forecast: Forecast, width: int | None) -> str:
    """The forecast in sections; what cannot run comes last, where it is read."""
    return fit("\n\n".join(_sections(forecast, width)), width)


def _sections(forecast: Forecast, width: int | None) -> Iterator[str]:
    yield "\n".join(_head(forecast))
    if forecast.cells:
        rows = [
            (c.recipe, c.group, some(c.devices), c.visits, duration(c.each.seconds), c.each.basis)
            for c in forecast.cells
        ]
        columns = ("recipe", "group", "devices", "visits", "each", "by")
        yield table(columns, rows, right=("visits", "each"), width=width)
    if forecast.pieces:
        made = [
            (piece.step, ", ".join(piece.recipes), ", ".join(piece.classes), _state(piece))
            for piece in forecast.pieces
        ]
        shown = table(("made once", "of", "for", "state"), made, width=width)
        yield f"{_made(forecast)}\n{shown}"
    for refused in forecast.refused:
        remedy = f"\n  what to do: {refused.remedy}" if refused.remedy else ""
        where = f"{refused.recipe} for {some(refused.devices)}"
        yield f"cannot be made: {where}: {refused.reason}{remedy}"
    if forecast.unsatisfied:
        yield "\n".join(["cannot be measured", *_unsatisfied(forecast)])
    remedies = {d.name: d.remedy for d in forecast.devices if d.remedy and d.groups}
    yield from (f"{name}: {remedy}" for name, remedy in remedies.items())
    yield from forecast.notes


def _unsatisfied(forecast: Forecast) -> Iterator[str]:
    """Each reason once, with the recipes that it holds for."""
    recipes: dict[tuple[str, str], list[str]] = {}
    for each in forecast.unsatisfied:
        recipes.setdefault((each.group, each.reason), []).append(each.recipe)
    for (group, reason), labels in recipes.items():
        yield f"  {group} ({some(labels)}): {reason}"


def _head(forecast: Forecast) -> Iterator[str]:
    devices = {name for cell in forecast.cells for name in cell.devices}
    recipes = {cell.recipe for cell in forecast.cells}
    yield (
        f"{forecast.farm}: {count(forecast.visits, 'visit')} of {count(len(recipes), 'recipe')} on "
        f"{count(len(devices), 'device')}"
    )
    if forecast.expected_s is not None:
        guessed = ", in part a guess" if forecast.guessed else ""
        yield f"expected time: {duration(forecast.expected_s)}{guessed}"
    if forecast.window:
        yield f"window: from {forecast.window.opens} until {forecast.window.closes}"


def _made(forecast: Forecast) -> str:
    told = []
    for step in ("export", "build"):
        own = [piece for piece in forecast.pieces if piece.step == step]
        cached = sum(piece.cached is True for piece in own)
        told.append(f"{count(len(own), step)}, {cached} cached")
    return "; ".join(told)


def _state(piece: NightArtifact) -> str:
    if piece.cached is None:
        return "known after the export" if piece.step == "build" else "to do"
    return "cached" if piece.cached else "to do"


def duration(seconds: float) -> str:
    """A time for a plan: `40 s`, `12 min`, `3 h 05 min`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"
