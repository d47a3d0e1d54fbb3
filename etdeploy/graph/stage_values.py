"""What each stage of a job produced: typed values in the folder of its state."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from etdeploy.bench.records.stored import StoredRun, load_run
from etdeploy.core.values import Kind, Value
from etdeploy.devices.base import Bundle
from etdeploy.export.run import ExportedProgram
from etdeploy.graph.job import Job
from etdeploy.program.folder import PROGRAM_INFO
from etdeploy.program.model import Program
from etdeploy.runner.model import BuiltRunner

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
