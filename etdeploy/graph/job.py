"""One job: a recipe, its device or target, and the folders that it uses."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from etdeploy.bench.records.stored import StoredRun, load_run
from etdeploy.cache.folder import CacheKind
from etdeploy.cache.workspace import Workspace
from etdeploy.core.errors import UsageError
from etdeploy.core.files.locks import exclusive
from etdeploy.core.hashing import sha256_bytes
from etdeploy.core.plugins import call_hook
from etdeploy.core.values import Kind, Progress, Value, silent
from etdeploy.devices.base import Bundle, Device, DeviceFacts, lock_name
from etdeploy.export.run import ExportedProgram
from etdeploy.program.folder import PROGRAM_INFO
from etdeploy.program.model import Program
from etdeploy.program.template import Speech
from etdeploy.recipe.load import LoadedRecipe
from etdeploy.runner.model import BuiltRunner
from etdeploy.targets.platforms import TARGETS, Target, host_target

_APP = "#app"


@dataclass(frozen=True)
class AppWish:
    """That an app runs the program, and not a runner.

    Attributes:
        given: An archive that is built already: an `.apk` or `.ipa`; None to build one.
        builds: Whether this command builds one; its project alone needs no tools.
    """

    given: Path | None = None
    builds: bool = True


@dataclass(frozen=True)
class AppMaker:
    """What on this machine decides how an app is made.

    Attributes:
        project: A digest of the templates and of the code that fills them in.
        tools: Of the tools that build it; empty where some are missing.
        given: Of the archive that is built already; None where there is none.
    """

    project: str
    tools: str
    given: str | None


@dataclass(frozen=True)
class Job:
    """What a run works on.

    Attributes:
        loaded: The recipe, and where it came from.
        target: What the runner is built for.
        host: This machine's target.
        workspace: The cache.
        output: The folder for run records.
        device: The device; None when only a target was named.
        facts: What the device reported about itself.
        identity: The same for every name of the same device.
        measure_again: Whether to repeat an unchanged measurement.
        variant: Tells two jobs of one run apart that have the same recipe and device.
        speech: What the recipe's language model is to understand; None where nothing is said to it.
        measures: Whether the program may be measured, whose traces need an ETRecord.
        app: That an app runs the program; None for a runner.
        wanted: The recipe as its author wrote it, where an app needs another export.
    """

    loaded: LoadedRecipe
    target: Target
    host: Target
    workspace: Workspace
    output: Path
    device: Device | None = None
    facts: DeviceFacts | None = None
    identity: str | None = None
    measure_again: bool = False
    variant: str = ""
    speech: Speech | None = None
    measures: bool = True
    app: AppWish | None = None
    wanted: LoadedRecipe | None = None

    @property
    def asked(self) -> LoadedRecipe:
        """The recipe as its author wrote it."""
        return self.wanted or self.loaded

    @property
    def runs_it(self) -> str:
        """What runs the program, for messages."""
        return "an app" if self.app else "a runner"

    @property
    def device_label(self) -> str:
        """The device's name, or the target's if there is no device."""
        return self.device.name if self.device else self.target.name

    @property
    def state(self) -> Path:
        """The folder of this recipe on this device; it stays the same when the recipe changes.

        Each model of --model has its own: a chat with one must not get what is made of another.
        """
        origin = str(self.loaded.path or self.loaded.name) + self.variant + self.loaded.named_model
        origin += _APP if self.app else ""
        recipe = f"{self.loaded.name}-{sha256_bytes(origin.encode())[:8]}"
        return self.workspace.state(f"{recipe}/{slug(self.device_label)}")

    @contextmanager
    def device_lock(self, progress: Progress) -> Iterator[None]:
        """Holds the device for this run alone.

        Raises:
            DeviceError: Somebody else has reserved it.
        """
        from etdeploy.device_pool.lookup import device_held

        if self.device is None or self.identity is None:
            raise RuntimeError("a step that needs a device was selected without one")
        lock = self.workspace.lock_path("device", self.identity)
        with device_held(lock, self.identity, self.device.name, progress):
            yield

    @property
    def shares_host_cores(self) -> bool:
        """Whether the runner runs on this machine's cores, so that its own work would disturb."""
        return self.device is not None and self.device.capabilities.shares_cores

    @contextmanager
    def state_lock(self, progress: Progress = silent) -> Iterator[None]:
        """Makes a second run of the same recipe on the same device wait."""
        lock = self.workspace.lock_path(CacheKind.STATE, self.state.parent.name, self.state.name)
        with exclusive(lock, f"recipe {self.loaded.name} on {self.device_label}", progress):
            yield


def _require_launchable(device: Device, app: AppWish | None) -> None:
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


def slug(text: str) -> str:
    """The text as a file name: only letters, digits, dots, dashes and underscores."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", text)


def make_job(
    loaded: LoadedRecipe,
    workspace: Workspace,
    output: Path,
    there: Reached | None,
    chosen: Target | None,
    measure_again: bool,
    app: AppWish | None = None,
) -> Job:
    """The job of a recipe on a device that was reached, or for a target alone.

    Raises:
        UsageError: ExecuTorch does not support this machine, or the device cannot run the target
            or any runner.
    """
    host = host_target()
    own = TARGETS[there.facts.target] if there else host
    if there:
        _require_launchable(there.device, app)
    if chosen and there:
        _require_runnable(chosen, own, there.device.name)
    return Job(
        loaded_for_app(loaded) if app else loaded,
        chosen or own,
        host,
        workspace,
        output.resolve(),
        there.device if there else None,
        there.facts if there else None,
        there.identity if there else None,
        measure_again,
        app=app,
        wanted=loaded,
    )


def loaded_for_app(loaded: LoadedRecipe) -> LoadedRecipe:
    """The recipe as it is exported for an app: a release of ExecuTorch lacks etdeploy's kernels."""
    recipe = loaded.recipe
    asked = recipe.export.generation
    if asked is None or asked.attention != "auto" or recipe.app.runtime == "source":
        return loaded
    stock = asked.model_copy(update={"attention": "stock"})
    export = recipe.export.model_copy(update={"generation": stock})
    return replace(loaded, recipe=recipe.model_copy(update={"export": export}))


@dataclass(frozen=True)
class Reached:
    """A device that answers: what it reported, and what tells it apart from others."""

    device: Device
    facts: DeviceFacts
    identity: str


@contextmanager
def reached(device: str | None, workspace: Workspace) -> Iterator[Reached | None]:
    """Opens a device and asks it what it is; None for no device."""
    from etdeploy.devices.registry import open_device

    if device is None:
        yield None
        return
    opened = open_device(device, workspace)
    try:
        # Several jobs may use it in threads: nothing is left to be asked then.
        yield Reached(opened, call_hook(opened.facts, DeviceFacts), lock_name(opened))
    finally:
        opened.close()


# A key of the recipe that changes how a runner is started, and not which is needed.
THREADS = "runtime.threads"
# An upgrade may decide otherwise from the same recipe and program.
CODE = "the code of etdeploy"


class StepName(Kind):
    """The steps of the pipeline; also the names of the files that they write."""

    EXPORT = "export"
    PLAN = "plan"
    RUNTIME = "runtime"
    PROJECT = "project"
    RUNNER = "runner"
    CHECK = "check"
    BUNDLE = "bundle"
    PUSH = "push"
    BENCH = "bench"


class Measured(Value):
    """Where the last run record is."""

    record: str
    sha256: str
    run_id: str


class Checked(Value):
    """The program and runner that were found to match."""

    program_sha256: str
    runner_sha256: str


class Pushed(Value):
    """What was pushed to which device."""

    device: str
    files: tuple[str, ...]


def load_last_run(job: Job) -> StoredRun:
    """The last run of the bench step."""
    measured = Measured.load(stage_path(job, StepName.BENCH))
    return load_run(Path(measured.record))


def load_program(job: Job) -> tuple[ExportedProgram, Program]:
    """The last program of the export step."""
    exported = ExportedProgram.load(stage_path(job, StepName.EXPORT))
    return exported, Program.load(Path(exported.folder) / PROGRAM_INFO)


def load_runner(job: Job) -> BuiltRunner:
    """The last runner of the runner step."""
    return BuiltRunner.load(stage_path(job, StepName.RUNNER))


def load_bundle(job: Job) -> Bundle:
    """The last bundle of the bundle step."""
    return Bundle.load(stage_path(job, StepName.BUNDLE))


def stage_path(job: Job, name: StepName) -> Path:
    """The file with a stage's value."""
    return job.state / f"{name}.json"


def flat(name: str, section: Any) -> Mapping[str, Any]:
    """A recipe section by dotted names, so that a changed key can be named."""
    content = section.model_dump(mode="json")
    return {f"{name}.{key}": value for key, value in content.items()}
