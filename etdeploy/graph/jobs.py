"""The jobs of one invocation: every recipe on every device, and each device opened once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from etdeploy.bench.records.stored import StoredRun
from etdeploy.cache.workspace import Workspace
from etdeploy.core import cancel
from etdeploy.core.errors import EtdeployError, UsageError
from etdeploy.core.plugins import attributed, call_hook
from etdeploy.core.values import Progress
from etdeploy.devices.base import Device, DeviceFacts, lock_name
from etdeploy.graph.job import AppOptions, AppPlanner, Job
from etdeploy.graph.on_device import device_lock, prepared, pushed_line
from etdeploy.program.generation import fits_stock_runtimes
from etdeploy.program.tokenizer import Speech
from etdeploy.recipe.load import LoadedRecipe
from etdeploy.targets.platforms import TARGETS, Target, find_target, host_target

_MOST_NAMED = 3


class RecipeDevicePair(NamedTuple):
    """A recipe and a device, as they are shown."""

    recipe: str
    device: str

    def __str__(self) -> str:
        return f"{self.recipe} on {self.device}"


def recipe_labels(recipes: Sequence[LoadedRecipe]) -> list[str]:
    """The recipes' names; of those with the same name, as much of the path as differs."""
    names = [loaded.name for loaded in recipes]
    return [
        loaded.name if names.count(loaded.name) == 1 else _distinct(loaded, recipes)
        for loaded in recipes
    ]


def _distinct(loaded: LoadedRecipe, recipes: Sequence[LoadedRecipe]) -> str:
    """The shortest end of the path that no other recipe with the same name has."""
    others = [r.path for r in recipes if r.name == loaded.name and r.path != loaded.path]
    parts = loaded.path.parts
    for length in range(1, len(parts)):
        end = parts[-length:]
        if not any(other.parts[-length:] == end for other in others):
            return "/".join(end)
    return str(loaded.path)


def served(some: Sequence[RecipeDevicePair], everyone: Sequence[RecipeDevicePair]) -> str:
    """Whom a task serves, in few words."""
    if len(some) == len(everyone) > 1:
        return "all"
    names = []
    for recipe in dict.fromkeys(pair.recipe for pair in some):
        devices = [pair.device for pair in some if pair.recipe == recipe]
        if len(devices) == sum(pair.recipe == recipe for pair in everyone):
            names.append(recipe)
        elif len({pair.recipe for pair in everyone}) == 1:
            names += devices
        else:
            names += [f"{recipe} on {device}" for device in devices]
    shown = ", ".join(names[:_MOST_NAMED])
    more = len(names) - _MOST_NAMED
    return f"{shown} and {more} more" if more > 0 else shown


@dataclass(frozen=True)
class JobSelection:
    """Every recipe on every device.

    Attributes:
        devices: None for a target alone.
        output: The folder for run records.
        target: Replaces the devices' own targets, or is used without a device.
        measure_again: Whether to repeat unchanged measurements.
        app: Set if apps run the programs.
        speech: What the recipe's language model has to understand; None if nobody talks with it.
        measures: Whether the program may be measured, whose traces need an ETRecord.
    """

    recipes: tuple[LoadedRecipe, ...]
    devices: tuple[str | None, ...]
    output: Path
    target: str | None = None
    measure_again: bool = False
    app: AppOptions | None = None
    speech: Speech | None = None
    measures: bool = True


@dataclass(frozen=True)
class Member:
    """One recipe on one device.

    Attributes:
        pair: What it is called.
        loaded: The recipe.
        job: What a run works on; None if the device cannot be used.
        error: Why it cannot run, if that is known before anything starts.
    """

    pair: RecipeDevicePair
    loaded: LoadedRecipe
    job: Job | None = None
    error: EtdeployError | None = None

    def require_job(self) -> Job:
        """The job; raises the error if the device cannot be used."""
        if self.job is None:
            raise self.error or RuntimeError(f"{self.pair} has neither a job nor an error")
        return self.job


@dataclass(frozen=True)
class Members:
    """All jobs, and notes on the devices that were named."""

    all: tuple[Member, ...]
    workspace: Workspace
    notes: tuple[str, ...] = ()

    @property
    def jobs(self) -> list[Job]:
        """The jobs whose devices can be used."""
        return [member.job for member in self.all if member.job]


def without_repetitions(
    recipes: Sequence[LoadedRecipe],
) -> tuple[tuple[LoadedRecipe, ...], tuple[str, ...]]:
    """Each recipe file once, and a note on each that was named more than once.

    Nothing is lost by running it once, and scripts that put lists together need not look for
    repetitions; but somebody who meant another recipe has to notice.
    """
    files = [loaded.path for loaded in recipes]
    once = {loaded.path: loaded for loaded in recipes}
    return tuple(once.values()), tuple(
        f"the recipe {path} is named {files.count(path)} times: it is used once"
        for path in once
        if files.count(path) > 1
    )


@contextmanager
def open_members(selection: JobSelection) -> Iterator[Members]:
    """Open each device once and make the jobs; an unusable device is an error of its jobs alone.

    Raises:
        UsageError: The kind of a device or the target is unknown, ExecuTorch does not support this
            machine, or the cache folder cannot be used.
        BuildError: There is no room for the cache.
    """
    from etdeploy.devices.registry import parse_spec

    for device in selection.devices:
        if device is not None:
            parse_spec(device)
    target = find_target(selection.target) if selection.target else None
    workspace = Workspace.opened()
    with ExitStack() as stack:
        stack.enter_context(workspace.in_use())
        devices, notes = _open_devices(selection.devices, workspace, stack)
        members = tuple(
            _member(selection, loaded, label, workspace, device, there, target)
            for loaded, label in zip(
                selection.recipes, recipe_labels(selection.recipes), strict=True
            )
            for device, there in devices.items()
        )
        yield Members(members, workspace, notes)


def _member(
    selection: JobSelection,
    loaded: LoadedRecipe,
    label: str,
    workspace: Workspace,
    device: str | None,
    there: ConnectedDevice | EtdeployError | None,
    target: Target | None,
) -> Member:
    if isinstance(there, EtdeployError):
        return Member(RecipeDevicePair(label, str(device)), loaded, error=there)
    name = there.device.name if there else selection.target or ""
    pair = RecipeDevicePair(label, name)
    try:
        with attributed():
            job = make_job(
                loaded, workspace, selection.output, there, target, selection.measure_again,
                selection.app,
            )  # fmt: skip
    except EtdeployError as error:
        return Member(pair, loaded, error=error)
    job = replace(job, speech=selection.speech, measures=selection.measures)
    return Member(pair, loaded, job)


def _open_devices(
    names: Sequence[str | None], workspace: Workspace, stack: ExitStack
) -> tuple[dict[str | None, ConnectedDevice | EtdeployError | None], tuple[str, ...]]:
    """Each device once, whatever its names; a device must not be measured twice."""

    def opened(name: str | None) -> ConnectedDevice | EtdeployError | None:
        try:
            with attributed():
                return stack.enter_context(connect_device(name, workspace))
        except EtdeployError as error:
            return error

    distinct = list(dict.fromkeys(names))
    answers = dict(zip(distinct, cancel.in_threads(opened, distinct), strict=True))
    found: dict[str | None, ConnectedDevice | EtdeployError | None] = {}
    known: dict[tuple[str, str], str | None] = {}
    notes = []
    for name in names:
        if name in found or name in known.values():
            notes.append(f"the device {name} is named several times: it is used once")
            continue
        there = answers[name]
        if isinstance(there, EtdeployError):
            found[name] = there
            continue
        # host and qemu are one machine, and yet two devices.
        same = (there.facts.kind, there.identity) if there else ("", "")
        if same in known:
            notes.append(f"{known[same]} and {name} are the same device: it is used once")
            continue
        known[same] = name
        found[name] = there
    return found, tuple(notes)


@contextmanager
def open_job(
    loaded: LoadedRecipe,
    output: Path,
    device: str | None = None,
    target: str | None = None,
    app: AppOptions | None = None,
) -> Iterator[Job]:
    """Open one device and make one job."""
    selection = JobSelection((loaded,), (device,), output, target, app=app)
    with open_members(selection) as members:
        yield members.all[0].require_job()


@contextmanager
def open_two(
    a: LoadedRecipe, b: LoadedRecipe, device: str, output: Path, target: str | None = None
) -> Iterator[Members]:
    """Open one device for two jobs, which may be of one recipe with other values.

    Raises as `open_job`.
    """
    selection = JobSelection((a, b), (device,), output, target, measure_again=True)
    with open_members(selection) as members:
        first, second = [member.require_job() for member in members.all]
        if first.state == second.state:
            second = replace(second, variant="B")
        pairs = [
            RecipeDevicePair(f"{job.loaded.name} ({letter})", job.device_label)
            for letter, job in (("A", first), ("B", second))
        ]
        named = [
            Member(pair, job.loaded, job) for pair, job in zip(pairs, (first, second), strict=True)
        ]
        yield replace(members, all=tuple(named))


def make_job(
    loaded: LoadedRecipe,
    workspace: Workspace,
    output: Path,
    there: ConnectedDevice | None,
    chosen: Target | None,
    measure_again: bool,
    app: AppOptions | None = None,
) -> Job:
    """The job of a recipe on a device that was reached, or for a target alone."""
    host = host_target()
    own = TARGETS[there.facts.target] if there else host
    if there:
        _require_launchable(there.device, app)
    if chosen and there:
        _require_runnable(chosen, own, there.device.name)
    return Job(
        loaded_for_app(loaded, chosen or own) if app else loaded,
        chosen or own,
        host,
        workspace,
        output.resolve(),
        there.device if there else None,
        there.facts if there else None,
        there.identity if there else None,
        measure_again,
        app=app,
        original=loaded,
        app_planner=_app_planner(chosen or own, library=app.library) if app else None,
    )


def _app_planner(target: Target, *, library: bool) -> AppPlanner:
    from etdeploy.graph.app_plan import PlatformPlanner, platform_for

    return PlatformPlanner(platform_for(target.system, library=library))


def loaded_for_app(loaded: LoadedRecipe, target: Target) -> LoadedRecipe:
    """The recipe as it is exported for an app.

    ExecuTorch's Java API allocates separate memory for each method, so only a program with a single
    method can process a prompt in parts and continue with single tokens. ExecuTorch's releases lack
    etdeploy's kernels.
    """
    recipe = loaded.recipe
    asked = recipe.export.generation
    if asked is None or asked.layout == "executorch":
        return loaded
    update: dict[str, str] = {}
    if target.system == "android" and fits_stock_runtimes(recipe):
        update["layout"] = "executorch"
    elif (asked.attention, asked.cache) == ("auto", "float32") and recipe.app.runtime != "source":
        update["attention"] = "stock"
    export = recipe.export.model_copy(update={"generation": asked.model_copy(update=update)})
    return replace(loaded, recipe=recipe.model_copy(update={"export": export}))


@dataclass(frozen=True)
class ConnectedDevice:
    """A device that answers: what it reported, and what tells it apart from others."""

    device: Device
    facts: DeviceFacts
    identity: str


@contextmanager
def connect_device(device: str | None, workspace: Workspace) -> Iterator[ConnectedDevice | None]:
    """Opens a device and asks it what it is; None for no device."""
    from etdeploy.devices.registry import open_device

    if device is None:
        yield None
        return
    opened = open_device(device, workspace)
    try:
        # Several jobs may use it in threads: nothing is left to be asked then.
        yield ConnectedDevice(opened, call_hook(opened.facts, DeviceFacts), lock_name(opened))
    finally:
        opened.close()


def _require_launchable(device: Device, app: AppOptions | None) -> None:
    """Raises UsageError unless the device starts apps, or runners, which are processes."""
    launches = device.capabilities.launches
    if app and "app" not in launches:
        raise UsageError(
            f"{device.name} runs no apps",
            remedy="Leave out --as app, or name a phone: etdeploy devices",
        )
    if not app and "process" not in launches and "app" in launches:
        raise UsageError(
            f"{device.name} can run apps but not command-line programs",
            remedy="Run the model in an app: --as app",
        )
    if not app and "process" not in launches:
        raise UsageError(
            f"{device.name} cannot start a runner: it starts no processes, only "
            f"{', '.join(launches) or 'nothing'}",
            remedy="Name another device: etdeploy devices",
        )


def _require_runnable(chosen: Target, own: Target, device: str) -> None:
    """Raises UsageError unless the device can run what is built for the chosen target."""
    # A static runner needs only the kernel, which is Linux on Android too.
    static = chosen.static and own.system in ("linux", "android") and chosen.arch == own.arch
    # One brings its C library, the other takes the device's; its user may know better which works.
    linux = own.system == chosen.system == "linux"
    sibling = linux and (chosen.portable == own.name or own.portable == chosen.name)
    if chosen.name != own.name and not (static or sibling):
        raise UsageError(
            f"{device} does not run what is built for {chosen.name}: its own target is {own.name}",
            remedy="Leave out --target, or name another device: etdeploy devices",
        )


def run_interleaved(
    a: Job, b: Job, progress: Progress, *, in_history: bool = True
) -> tuple[StoredRun, StoredRun]:
    """Pushes both bundles and interleaves their starts, with the device locked all through.

    The bundles must exist. `in_history` is false for old commits: measured today, they would look
    like a change there.
    """
    from etdeploy.bench.measure import measure_interleaved
    from etdeploy.history.record_sink import save_run

    device = a.device
    if device is None:
        raise RuntimeError("two recipes can only be interleaved on a device")
    with device_lock(a, progress):
        ready = prepared(a), prepared(b)
        for each in ready:
            progress(pushed_line(device.push(each.bundle, progress)))
        runs = measure_interleaved(device, *ready, a.output, progress)
    for run in runs if in_history else ():
        save_run(run)
    return runs
