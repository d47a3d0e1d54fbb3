"""Two recipes, measured in turns and compared."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from etdeploy.bench.records.stored import StoredRun
from etdeploy.cli.invocation import after_others, keep_small
from etdeploy.cli.many.jobs import raise_failures
from etdeploy.core import console
from etdeploy.core.errors import Interrupted
from etdeploy.graph.job import Job
from etdeploy.graph.many.members import Members
from etdeploy.graph.many.run import look_up, refused_of, run_jobs
from etdeploy.graph.many.turns import open_two, run_in_turns
from etdeploy.graph.stage_values import StepName
from etdeploy.graph.tasks.slots import heavy_at_once
from etdeploy.recipe.load import LoadedRecipe

_TASK = "compare"


@dataclass(frozen=True)
class Turns:
    """What the command line names, with the recipes loaded."""

    a: LoadedRecipe
    b: LoadedRecipe
    device: str
    output: Path
    target: str | None = None
    quiet: bool = False
    in_history: bool = True


def measure_turns(turns: Turns) -> tuple[StoredRun, StoredRun]:
    """Exports and builds both as one graph, then measures them start by start.

    Raises:
        JobsError: A step of one of the two failed; nothing was measured.
        EtdeployError: The device cannot be used, or the measurement failed.
    """
    with open_two(turns.a, turns.b, turns.device, turns.output, turns.target) as members:
        jobs = [member.job for member in members.all if member.job]
        for job in jobs:
            members.workspace.sweep(job.state)
        with console.TaskDisplay(quiet=turns.quiet) as display, after_others(jobs, display):
            _make(members, display)
            runs = _measure(jobs[0], jobs[1], display, turns.in_history)
        keep_small(members.workspace, turns.quiet)
    return runs


def _make(members: Members, display: console.TaskDisplay) -> None:
    """Everything that goes to the device.

    Raises:
        JobsError: Something cannot be made.
    """
    ready, failed = look_up(members.all)
    failed += refused_of(ready, StepName.BENCH)
    if not failed:
        # Without one of the two, the other is of no use.
        ends = run_jobs(ready, StepName.BUNDLE, display, heavy=heavy_at_once(), fail_fast=True)
        failed = [end for end in ends if end.error and not end.stopped]
    raise_failures(failed, len(members.all))


def _measure(
    a: Job, b: Job, display: console.TaskDisplay, in_history: bool
) -> tuple[StoredRun, StoredRun]:
    begun = time.monotonic()
    display.start(_TASK)
    try:
        runs = run_in_turns(
            a,
            b,
            lambda text, part=None: display.advance(_TASK, text, part),
            in_history=in_history,
        )
    except BaseException as error:
        display.end(_TASK, "stopped" if isinstance(error, Interrupted) else "failed")
        raise
    starts = len(runs[0].record.workload.runs)
    told = f"{console.count(starts, 'pair')} of starts"
    display.end(_TASK, told, time.monotonic() - begun)
    return runs
