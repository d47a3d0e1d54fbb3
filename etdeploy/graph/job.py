"""One job: a recipe, its device or target, and the folders that it uses."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from etdeploy.cache.folder import CacheKind
from etdeploy.cache.workspace import Workspace
from etdeploy.core.files.locks import exclusive
from etdeploy.core.hashing import sha256_bytes
from etdeploy.core.values import Progress, StrEnum, Value, silent
from etdeploy.devices.base import Bundle, Device, DeviceFacts
from etdeploy.export.cache import ExportedProgram
from etdeploy.export.spec import NodeObservation
from etdeploy.plan.derive import Available, CustomKernels
from etdeploy.plan.model import RuntimePlan
from etdeploy.program.folder import PROGRAM_INFO
from etdeploy.program.model import Program
from etdeploy.program.tokenizer import Speech
from etdeploy.recipe.load import LoadedRecipe
from etdeploy.runner.model import BuiltRunner
from etdeploy.targets.platforms import Target

_APP, _LIBRARY = "#app", "#library"


@dataclass(frozen=True)
class AppOptions:
    """That an app runs the program, and not a runner.

    Attributes:
        given: An archive that is built already: an `.apk` or `.ipa`; None to build one.
        builds: Whether this command builds one; its project alone needs no tools.
        library: Whether the project is a library for apps, in place of one.
    """

    given: Path | None = None
    builds: bool = True
    library: bool = False


@dataclass(frozen=True)
class AppInputs:
    """What on this machine decides how an app is made.

    Attributes:
        project: A digest of the templates and of the code that fills them in.
        tools: Of the tools that build it; empty where some are missing.
        given: Of the archive that is built already; None where there is none.
    """

    project: str
    tools: str
    given: str | None


class AppPlanner(Protocol):
    """Plans apps for one system; `graph/app_plan.py` implements it.

    A run without an app imports no module of apps.
    """

    def app_plan(self, job: Job, program: Program | None, version: str) -> RuntimePlan:
        """What the app's ExecuTorch is; what keeps the app from having it is among the blockers."""
        ...

    def built_plan(
        self,
        job: Job,
        program: Program | None,
        plan: RuntimePlan,
        available: Available,
        custom: CustomKernels | None,
    ) -> RuntimePlan:
        """The plan of an app's ExecuTorch that is built from a checkout."""
        ...

    def inputs(self, job: Job) -> AppInputs:
        """Look up what on this machine decides how the app is made."""
        ...


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
        observation: The values that the program returns beside its outputs, if it runs once to be
            compared with eager; None if it is measured.
        app: Set if an app runs the program; None for a runner.
        original: The recipe as its author wrote it, where an app needs another export.
        app_planner: Plans the app's ExecuTorch.
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
    observation: NodeObservation | None = None
    app: AppOptions | None = None
    original: LoadedRecipe | None = None
    app_planner: AppPlanner | None = None

    @property
    def original_recipe(self) -> LoadedRecipe:
        """The recipe as its author wrote it."""
        return self.original or self.loaded

    @property
    def runs_it(self) -> str:
        """An app or a runner, for messages."""
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
        if self.app:
            origin += _LIBRARY if self.app.library else _APP
        recipe = f"{self.loaded.name}-{sha256_bytes(origin.encode())[:8]}"
        return self.workspace.state(f"{recipe}/{slug(self.device_label)}")

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


def slug(text: str) -> str:
    """The text as a file name: only letters, digits, dots, dashes and underscores."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", text)


# A key of the recipe that changes how a runner is started, and not which is needed.
THREADS = "runtime.threads"
# An upgrade may decide otherwise from the same recipe and program.
CODE = "the code of etdeploy"


class StepName(StrEnum):
    """The steps of the pipeline; also the names of the files that they write."""

    EXPORT = "export"
    PLAN = "plan"
    PREBUILD = "prebuild"
    RUNTIME = "runtime"
    PROJECT = "project"
    RUNNER = "runner"
    CHECK = "check"
    BUNDLE = "bundle"
    PUSH = "push"
    BENCH = "bench"
    OBSERVE = "observe"


class Checked(Value):
    """The program and runner that were found to match."""

    program_sha256: str
    runner_sha256: str


class Pushed(Value):
    """What was pushed to which device."""

    device: str
    files: tuple[str, ...]


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
