"""What a verb does for several recipes or devices: one graph, and a list of what failed."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etdeploy.bench.records.stored import StoredRun
from etdeploy.cli.invocation import after_others, keep_small
from etdeploy.cli.main import keep_traceback
from etdeploy.cli.options import JobOptions
from etdeploy.core import console
from etdeploy.core.errors import EtdeployError, Interrupted, JobsError, PluginError
from etdeploy.graph.job import Job, StepName
from etdeploy.graph.many.members import (
    JobSelection,
    Member,
    Members,
    open_members,
    open_two,
    run_in_turns,
    without_repetitions,
)
from etdeploy.graph.many.run import JobEnd, look_up, refused_of, run_jobs
from etdeploy.graph.tasks.steps import heavy_at_once
from etdeploy.recipe.load import LoadedRecipe, load_recipes


def wanted_of(named: JobOptions) -> JobSelection:
    """The recipes that are named, loaded; warns of those that are named more than once."""
    recipes, notes = without_repetitions(load_recipes(named.recipes, named.overrides))
    for note in notes:
        console.warn(note)
    return JobSelection(
        recipes, named.devices, named.output, named.target, named.measure_again, named.app
    )


@contextmanager
def invoke_all(named: JobOptions, goal: StepName) -> Iterator[list[JobEnd]]:
    """Runs the goal of every recipe on every device, then yields how each job ended."""
    with open_members(wanted_of(named)) as members:
        for note in members.notes:
            console.warn(note)
        jobs = [member.job for member in members.all if member.job]
        for job in jobs:
            members.workspace.sweep(job.state)
        with console.TaskDisplay(quiet=named.quiet) as display, after_others(jobs, display):
            ready, refused = look_up(members.all)
            refused += refused_of(ready, goal)
            _keep_tracebacks(refused)
            for pairs, error in by_error(refused):
                console.message(f"cannot start: {pairs}: {error}")
            out = {end.member.pair for end in refused}
            stay = not (refused and named.fail_fast)
            ready = [each for each in ready if stay and each.member.pair not in out]
            heavy = named.heavy or heavy_at_once()
            ends = run_jobs(ready, goal, display, heavy=heavy, fail_fast=named.fail_fast)
        _keep_tracebacks(ends)
        found = {end.member.pair: end for end in (*refused, *ends)}
        yield [found.get(m.pair, JobEnd(m, Interrupted())) for m in members.all]
        keep_small(members.workspace, named.quiet)


def raise_failures(ends: Sequence[JobEnd], count: int | None = None) -> None:
    """Raises one error that lists what failed; `count` is the number of all jobs."""
    failed = [end for end in ends if end.error]
    _keep_tracebacks(failed)
    known = [end.error for end in failed if isinstance(end.error, EtdeployError)]
    lines = [line for pairs, error in by_error(failed) for line in _told(pairs, error)]
    lines += [
        f"  {end.member.pair}: it needs what failed for {end.same_as}"
        for end in failed
        if end.same_as
    ]
    bugs = [end.error for end in failed if end.error and not isinstance(end.error, EtdeployError)]
    if bugs:
        console.message("\n".join(lines))
        raise bugs[0]
    if failed:
        own = [error for error in known if not isinstance(error, Interrupted)]
        worst = max(own, key=lambda error: error.exit_code, default=Interrupted())
        raise JobsError("\n".join([_counted(failed, count or len(ends)), *lines]), worst)


def _keep_tracebacks(ends: Sequence[JobEnd]) -> None:
    """Lets the failures of plug-ins name the file that their authors need."""
    for end in ends:
        if isinstance(end.error, PluginError):
            keep_traceback(end.error)


def _counted(failed: Sequence[JobEnd], count: int) -> str:
    stopped = sum(end.stopped for end in failed)
    rest = f", {stopped} not finished" if stopped else ""
    return f"{len(failed) - stopped} of {count} failed{rest}"


def by_error(ends: Sequence[JobEnd]) -> list[tuple[str, Exception]]:
    """Each error once, with the jobs that it stopped: a phone that is not there stops several."""
    found: dict[str, tuple[list[str], Exception]] = {}
    for end in ends:
        if end.error and not end.same_as:
            # A model that cannot be read is the same mistake on each device.
            key = "" if end.stopped else f"{type(end.error).__name__}: {end.error}"
            found.setdefault(key, ([], end.error))[0].append(str(end.member.pair))
    return [(", ".join(pairs), error) for pairs, error in found.values()]


def _told(pairs: str, error: Exception) -> Iterator[str]:
    if isinstance(error, Interrupted):
        yield f"  {pairs}: not finished, since another one failed (--fail-fast)"
        return
    kind = error.kind if isinstance(error, EtdeployError) else "bug"
    first, *rest = str(error).splitlines()
    yield f"  {pairs}: {kind}: {first}"
    yield from (f"    {line}" for line in rest)


def failure_json(end: JobEnd) -> dict[str, Any]:
    """A job without a result."""
    return {**job_json(end.member), "error": _error(end)}


def job_json(member: Member) -> dict[str, Any]:
    """Recipe and device of a job, with their names where a run record has them."""
    facts = member.job.facts if member.job else None
    return {
        "recipe": {"name": member.loaded.name, "path": str(member.loaded.path)},
        "device": {
            "facts": facts.model_dump(mode="json") if facts else {"name": member.pair.device}
        },
    }


def _error(end: JobEnd) -> dict[str, Any]:
    error = end.error
    same_as = end.same_as._asdict() if end.same_as else None
    if not isinstance(error, EtdeployError):
        code = EtdeployError.exit_code
        return {"kind": "bug", "exit_code": code, "message": str(error), "same_as": same_as}
    return {
        "kind": error.kind,
        "exit_code": error.exit_code,
        "message": error.message,
        "place": error.place,
        "remedy": error.remedy,
        "log": str(error.log) if error.log else None,
        "same_as": same_as,
    }


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
    """Exports and builds both as one graph, then measures them start by start."""
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
    """Everything that goes to the device."""
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
