"""Searches of a recipe on one or several devices, from what a command line names."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from etdeploy.backends.registry import exporting_names
from etdeploy.bench.threads import performance_cores
from etdeploy.cache.folder import CacheKind
from etdeploy.cache.workspace import Workspace
from etdeploy.core.errors import UsageError
from etdeploy.core.files.locks import exclusive
from etdeploy.core.hashing import digest_json
from etdeploy.devices.base import DeviceState
from etdeploy.graph.job import slug
from etdeploy.graph.jobs import ConnectedDevice, connect_device
from etdeploy.graph.resolve import resolve
from etdeploy.program.folder import load_provenance
from etdeploy.recipe.load import LoadedRecipe
from etdeploy.targets.platforms import Target, find_target
from etdeploy.tune.journal import Journal
from etdeploy.tune.metrics import ENERGY, PERPLEXITY, parse_limits, require_metric
from etdeploy.tune.search import rank
from etdeploy.tune.space import BACKEND, Space, TuneSubject, derive_space, require_key
from etdeploy.tune.tuner import Goal, Tuned, Tuner, exclusions, knowledge_of
from etdeploy.tune.workbench import STARTS, Workbench

_FIXED = re.compile(r"#\s*fixed\b", re.IGNORECASE)
BASE_PROGRAM = "{}"
_FEW_CORES = 4


@dataclass(frozen=True)
class TuneRequest:
    """What to search for.

    Attributes:
        loaded: The recipe as it is.
        goal: Objective, limits and budget.
        fixed: Keys that stay, each with the reason.
        varied: Further keys, or other values of one.
        output: The folder for run records.
        target: What the runner is for; None for the devices' own.
        again: Whether to forget what earlier searches measured.
        quiet: Whether nothing is shown.
    """

    loaded: LoadedRecipe
    goal: Goal
    fixed: Mapping[str, str]
    varied: Mapping[str, tuple[Any, ...]]
    output: Path
    target: str | None = None
    again: bool = False
    quiet: bool = False


def make_goal(loaded: LoadedRecipe, minimize: str, limits: Sequence[str], budget_s: float) -> Goal:
    """The goal that a command line names.

    Raises:
        UsageError: A metric or a limit does not exist, or cannot be measured with this recipe.
    """
    recipe = loaded.recipe
    is_text = recipe.is_language_model
    require_metric(minimize, is_text=is_text, option="--minimize")
    goal = Goal(minimize, parse_limits(limits, is_text=is_text), budget_s)
    if ENERGY in goal.metrics and not recipe.benchmark.sustained_s:
        raise UsageError(
            "energy is measured in the sustained pass, and the recipe has none",
            remedy="Add one: --set benchmark.sustained_s=60",
        )
    generation = recipe.export.generation
    if PERPLEXITY in goal.metrics and generation and generation.evaluate == "none":
        raise UsageError(
            "perplexity is not known: export.generation.evaluate is none",
            remedy="Evaluate the model: --set export.generation.evaluate=null",
        )
    return goal


def fixed_keys(
    loaded: LoadedRecipe, named: Sequence[str], varied: Collection[str] = ()
) -> dict[str, str]:
    """The keys that stay: those of --fix, and those whose line in the recipe says `# fixed`.

    --vary wins over a comment.

    Raises:
        UsageError: --fix names no key that can be varied, or one that --vary names, too.
    """
    for key in named:
        require_key(key, "--fix")
        if key in varied:
            raise UsageError(
                f"{key} is named by --fix and by --vary", remedy="Leave out one of the two."
            )
    found = dict.fromkeys(named, "fixed with --fix")
    lines: dict[Path, list[str]] = {}
    for keys, place in loaded.places.items():
        if place.line is None or not all(isinstance(part, str) for part in keys):
            continue
        path = place.folder / Path(place.file).name
        if path not in lines:
            try:
                lines[path] = path.read_text(encoding="utf-8-sig").splitlines()
            except OSError:
                lines[path] = []
        line = lines[path][place.line - 1] if place.line <= len(lines[path]) else ""
        if _FIXED.search(line):
            found.setdefault(".".join(map(str, keys)), f"fixed at {place}")
    return {key: reason for key, reason in found.items() if key not in varied}


def thread_counts(state: DeviceState) -> tuple[int, ...]:
    """Numbers of threads that are worth trying: 1, 2, 4 and so on, and those of core clusters."""
    usable = sum(len(cluster.cpus) for cluster in state.clusters)
    if state.usable_cpus is not None:
        usable = min(usable, len(state.usable_cpus)) or len(state.usable_cpus)
    strong = performance_cores(state)[0]
    most = usable or _FEW_CORES
    powers = [2**n for n in range(9) if 2**n <= most]
    sums, total = [], 0
    for cluster in sorted(state.clusters, key=lambda c: -(c.capacity or c.max_khz or 0)):
        total += len(cluster.cpus)
        sums.append(total)
    return tuple(sorted({n for n in (*powers, *sums, strong) if 1 <= n <= most}))


@contextmanager
def open_tuner(
    request: TuneRequest,
    device: str,
    workspace: Workspace,
    tell: Callable[[str], None],
    others: Sequence[Tuner] = (),
) -> Iterator[Tuner]:
    """Open a device and what is known of it; another search of the same waits.

    Raises:
        UsageError: It is the device of one of the others, under another name.
    """
    with connect_device(device, workspace) as connected:
        if connected is None:
            raise UsageError("a search needs a device")
        bench = _workbench(request, connected, workspace)
        base = bench.job(BASE_PROGRAM)
        resolved = resolve(base)
        folder = _folder(request, connected, workspace, resolved.program_key or "")
        for other in others:
            if other.journal.path.parent == folder:
                raise UsageError(
                    f"{other.bench.device.device.name} and {device} are the same device",
                    place="--device",
                    remedy="Name it once.",
                )
        lock = workspace.lock_path(CacheKind.STATE, folder.parent.name, folder.name)
        with exclusive(lock, f"the search for {request.loaded.name} on {device}"):
            journal = Journal(folder)
            if request.again:
                journal.forget()
            made = None
            if resolved.exported:
                seconds = load_provenance(resolved.exported.folder).seconds
                made = sum(seconds.values())
            unusable = bench.unusable_backends(_other_backends(request))
            subject = _subject(request, connected, unusable, base.target)

            def space(layers: tuple[str, ...]) -> Space:
                return derive_space(_with_layers(subject, layers))

            yield Tuner(bench, journal, request.goal, space, tell, made)


def _workbench(request: TuneRequest, connected: ConnectedDevice, workspace: Workspace) -> Workbench:
    target: Target | None = find_target(request.target) if request.target else None
    name = f"tune-{slug(request.loaded.name)}-{slug(connected.device.name)}"
    return Workbench(
        request.loaded, connected, workspace, (request.output / name).resolve(),
        request.goal.metrics, target, request.quiet,
    )  # fmt: skip


def _folder(
    request: TuneRequest, connected: ConnectedDevice, workspace: Workspace, program: str
) -> Path:
    """The journal's folder; another for each recipe, program and device."""
    content = request.loaded.recipe.model_dump(mode="json", exclude_unset=True)
    content.pop("description", None)
    key = digest_json([content, request.target, program, str(request.loaded.path)])[:12]
    name = f"{slug(request.loaded.name)}-tune-{key}"
    # host and qemu are one machine, and yet two devices.
    device = slug(f"{connected.facts.kind}-{connected.identity}")
    return workspace.state(f"{name}/{device}")


def _other_backends(request: TuneRequest) -> list[str]:
    """The backends to look at, besides the recipe's own."""
    recipe = request.loaded.recipe
    if BACKEND in request.fixed or recipe.model.program or recipe.export.llm_config:
        return []
    wanted = request.varied.get(BACKEND)
    return [
        name
        for name in exporting_names()
        if name != recipe.export.backend and (wanted is None or name in wanted)
    ]


def _subject(
    request: TuneRequest, connected: ConnectedDevice, unusable: Mapping[str, str], target: Target
) -> TuneSubject:
    return TuneSubject(
        recipe=request.loaded.recipe,
        target=target,
        cores=thread_counts(connected.device.state()),
        metrics=request.goal.metrics,
        fixed=request.fixed,
        varied=request.varied,
        unusable=unusable,
    )


def _with_layers(subject: TuneSubject, layers: tuple[str, ...]) -> TuneSubject:
    return replace(subject, layers=layers)


@dataclass(frozen=True)
class CommonBest:
    """The combination that is best for several devices together.

    Attributes:
        key: Its changes, as JSON.
        label: The same in short.
        regrets: By device, how much longer it takes there than the device's own best: 0.03.
    """

    key: str
    label: str
    regrets: Mapping[str, float]

    @property
    def worst(self) -> float:
        """The largest regret."""
        return max(self.regrets.values())


def measure_for_common(tuner: Tuner, tuned: Tuned, keys: Sequence[str]) -> None:
    """Measure the best combinations of other devices here, those that are not known yet."""
    place = {candidate.key: n for n, candidate in enumerate(tuned.space.candidates)}
    known = tuned.found.figures
    missing = [place[key] for key in keys if key in place and key not in known]
    missing = [number for number in missing if number not in tuned.excluded]
    if not missing or tuned.ranking.best is None:
        return
    for number in missing:
        candidate = tuned.space.candidates[number]
        if candidate.program not in tuned.found.programs:
            [event] = tuner.bench.make([candidate.program], candidate.label)
            tuner.journal.append(event)
    now = exclusions(tuned.space, tuned.found, tuned.goal)
    chosen = [tuned.ranking.best, *(number for number in missing if number not in now)]
    if len(chosen) > 1:
        candidates = [tuned.space.candidates[number] for number in chosen]
        tuner.journal.append(tuner.bench.measure(candidates, known, "common", STARTS))


def common_best(tuned: Mapping[str, Tuned]) -> CommonBest | None:
    """The combination with the smallest worst regret among those measured on every device.

    None if no combination was measured on, and keeps within the limits of, every device.
    """
    estimates: dict[str, dict[str, float]] = {}
    labels: dict[str, str] = {}
    for device, each in tuned.items():
        known, _ = knowledge_of(each.space, each.found, each.goal)
        ranking = rank(each.space.points, known)
        if ranking.posterior is None:
            return None
        for number in ranking.order:
            candidate = each.space.candidates[number]
            labels[candidate.key] = candidate.label
            estimate = math.exp(ranking.posterior.mean[number])
            estimates.setdefault(device, {})[candidate.key] = estimate
    if set(estimates) != set(tuned):
        return None
    shared = set.intersection(*(set(own) for own in estimates.values()))
    if not shared:
        return None
    best = {device: min(own.values()) for device, own in estimates.items()}
    regrets = {
        key: {device: own[key] / best[device] - 1 for device, own in estimates.items()}
        for key in shared
    }
    key = min(shared, key=lambda k: (max(regrets[k].values()), len(k), k))
    return CommonBest(key, labels[key], regrets[key])
