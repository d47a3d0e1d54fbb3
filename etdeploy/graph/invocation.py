"""Load, open, lock, run and report failures: shared by the verbs that run steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from etdeploy.bench.records.stored import StoredRun
from etdeploy.cache.crash_log import keep_traceback
from etdeploy.cache.folder import LIMIT_VARIABLE, limit_bytes
from etdeploy.cache.tidy import keep_below
from etdeploy.cache.workspace import NOTES, Workspace
from etdeploy.core import console
from etdeploy.core.console import lazy_task
from etdeploy.core.errors import EtdeployError, Interrupted, JobsError, PluginError, UsageError
from etdeploy.core.files.delivery import Delivery
from etdeploy.core.values import Progress
from etdeploy.graph.job import Job, StepName
from etdeploy.graph.jobs import (
    JobSelection,
    Member,
    Members,
    open_members,
    open_two,
    run_interleaved,
    without_repetitions,
)
from etdeploy.graph.options import JobOptions
from etdeploy.graph.run import JobEnd, look_up, refused_of, run_jobs
from etdeploy.graph.tasks.steps import heavy_at_once
from etdeploy.recipe.load import LoadedRecipe, load_recipes

T = TypeVar("T")
_WAIT, _COMPARE = "wait", "compare"


@contextmanager
def open_named(named: JobOptions) -> Iterator[Members]:
    """Load the recipes and open the devices; warn of those that are named more than once."""
    recipes, repeated = without_repetitions(load_recipes(named.recipes, named.overrides))
    for note in repeated:
        console.warn(note)
    selection = JobSelection(
        recipes, named.devices, named.output, named.target, named.measure_again, named.app,
        named.speech, named.measures,
    )  # fmt: skip
    with open_members(selection) as members:
        for note in members.notes:
            console.warn(note)
        yield members


@contextmanager
def run_recipes(
    named: JobOptions,
    goal: StepName,
    copy_to: Path | None = None,
    admit: Callable[[Job], None] | None = None,
) -> Iterator[list[JobEnd]]:
    """Run the goal of every recipe on every device, then yield how each job ended.

    The devices stay open in the block. If one recipe and one device are named, its failure is
    raised. `copy_to` is checked before anything runs; see `deliver`. `admit` is called with each
    job before anything runs, and may raise.
    """
    if copy_to and not named.single:
        raise UsageError(
            "--output takes the files of one recipe for one device",
            remedy="Leave out --output: the table says where each result is in the cache.\n"
            f"Or name one recipe: etdeploy {'export' if goal == StepName.EXPORT else 'build'} "
            "--recipe RECIPE --output FOLDER",
        )
    with open_named(named) as members:
        if copy_to:
            _delivery(members.all[0].require_job(), copy_to, goal).require_free()
        for job in members.jobs:
            if admit:
                admit(job)
            members.workspace.sweep(job.state)
        with console.TaskDisplay(quiet=named.quiet) as display, after_others(members.jobs, display):
            # Only now, since the other run may have done the steps.
            ready, refused = look_up(members.all)
            refused += refused_of(ready, goal)
            if named.single:
                raise_failures(refused)
            _keep_tracebacks(refused)
            for pairs, error in by_error(refused):
                console.message(f"cannot start: {pairs}: {error}")
            out = {end.member.pair for end in refused}
            stay = not (refused and named.fail_fast)
            ends = run_jobs(
                [each for each in ready if stay and each.member.pair not in out],
                goal,
                display,
                heavy=named.heavy or heavy_at_once(),
                fail_fast=named.fail_fast,
                brief=not named.single,
            )
        if named.single:
            raise_failures(ends)
        _keep_tracebacks(ends)
        found = {end.member.pair: end for end in (*refused, *ends)}
        yield [found.get(m.pair, JobEnd(m, Interrupted())) for m in members.all]
        keep_small(members.workspace, named.quiet)


@contextmanager
def run_recipe(
    named: JobOptions, goal: StepName, admit: Callable[[Job], None] | None = None
) -> Iterator[Job]:
    """Run the goal of one recipe on one device."""
    with run_recipes(named, goal, admit=admit) as [end]:
        yield end.member.require_job()


def results(ends: Sequence[JobEnd], load: Callable[[Job], T]) -> list[tuple[JobEnd, T | None]]:
    """Load the result of each job; None for one that failed."""
    return [(end, None if end.error else load(end.member.require_job())) for end in ends]


def print_json(
    named: JobOptions,
    found: Sequence[tuple[JobEnd, T | None]],
    document: Callable[[JobEnd, T], dict[str, Any]],
) -> None:
    """Print the document of one result, or an array of all, including failures."""
    shown = [
        {**job_json(end.member), "error": _error(end)} if made is None else document(end, made)
        for end, made in found
    ]
    console.result_json(shown[0] if named.single else shown)


def failure_in_short(end: JobEnd) -> str:
    """Return a word for a table cell: the list of failures follows."""
    if end.stopped:
        return "stopped"
    return f"failed ({end.error.kind if isinstance(end.error, EtdeployError) else 'bug'})"


@contextmanager
def after_others(jobs: Sequence[Job], display: console.TaskDisplay) -> Iterator[None]:
    """Wait for other runs of the same recipes on the same devices, shown as a task.

    Every run takes the locks in the same order, so that two never wait for each other.
    """
    with ExitStack() as stack:
        with lazy_task(display, _WAIT, "the other run has ended") as tell:
            for job in sorted(jobs, key=lambda job: job.state):
                stack.enter_context(job.state_lock(tell))
        yield


def keep_small(workspace: Workspace, quiet: bool) -> None:
    """Shrink a cache above its limit; warn if that fails."""
    limit = limit_bytes()
    if limit is None:
        return
    try:
        freed = keep_below(workspace, limit).freed_bytes
    except OSError as error:
        console.warn(f"the size of the cache cannot be reduced: {error}")
        return
    if freed and not quiet:
        console.message(
            f"\ncache: removed the least recently used {', '.join(freed)}, "
            f"{console.size(sum(freed.values()))}, to stay below {console.size(limit)} "
            f"({LIMIT_VARIABLE})"
        )


def deliver(job: Job, source: Path, copy_to: Path, goal: StepName) -> Path:
    """Copy the result of a step to a folder of the user, and return its path."""
    return _delivery(job, copy_to, goal).put(source, NOTES)


def _delivery(job: Job, folder: Path, goal: StepName) -> Delivery:
    path = job.loaded.path
    kept = {"recipe's folder": path.parent} if path else {}
    content = "program" if goal == StepName.EXPORT else "runner"
    return Delivery(folder, content, kept, job.workspace.root)


def raise_failures(ends: Sequence[JobEnd], count: int | None = None) -> None:
    """Raise one error that lists what failed; that of the only job as it is.

    `count` is the number of all jobs.
    """
    failed = [end for end in ends if end.error]
    _keep_tracebacks(failed)
    count = count or len(ends)
    if count == 1 and failed and failed[0].error:
        raise failed[0].error
    lines = [line for pairs, error in by_error(failed) for line in _described(pairs, error)]
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
        own = [e.error for e in failed if isinstance(e.error, EtdeployError) and not e.stopped]
        worst = max(own, key=lambda error: error.exit_code, default=Interrupted())
        stopped = sum(end.stopped for end in failed)
        rest = f", {stopped} not finished" if stopped else ""
        head = f"{len(failed) - stopped} of {count} failed{rest}"
        raise JobsError("\n".join([head, *lines]), worst)


def _keep_tracebacks(ends: Sequence[JobEnd]) -> None:
    """Write the tracebacks of plug-ins to the files that the errors name."""
    for end in ends:
        if isinstance(end.error, PluginError):
            keep_traceback(end.error)


def by_error(ends: Sequence[JobEnd]) -> list[tuple[str, Exception]]:
    """Return each error once, with the jobs that it stopped."""
    found: dict[str, tuple[list[str], Exception]] = {}
    for end in ends:
        if end.error and not end.same_as:
            # The same message for several jobs is one mistake.
            key = "" if end.stopped else f"{type(end.error).__name__}: {end.error}"
            found.setdefault(key, ([], end.error))[0].append(str(end.member.pair))
    return [(", ".join(pairs), error) for pairs, error in found.values()]


def _described(pairs: str, error: Exception) -> Iterator[str]:
    if isinstance(error, Interrupted):
        yield f"  {pairs}: not finished, since another one failed (--fail-fast)"
        return
    kind = error.kind if isinstance(error, EtdeployError) else "bug"
    first, *rest = str(error).splitlines()
    yield f"  {pairs}: {kind}: {first}"
    yield from (f"    {line}" for line in rest)


def job_json(member: Member) -> dict[str, Any]:
    """Return recipe and device of a job under the keys of a run record."""
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


@dataclass(frozen=True)
class RecipePair:
    """Two recipes whose starts are interleaved on one device."""

    a: LoadedRecipe
    b: LoadedRecipe
    device: str
    output: Path
    target: str | None = None
    quiet: bool = False
    in_history: bool = True


def measure_pair(pair: RecipePair) -> tuple[StoredRun, StoredRun]:
    """Export and build both as one graph, then measure them start by start."""
    with open_two(pair.a, pair.b, pair.device, pair.output, pair.target) as members:
        for job in members.jobs:
            members.workspace.sweep(job.state)
        with (
            console.TaskDisplay(quiet=pair.quiet) as display,
            after_others(members.jobs, display),
        ):
            ready, failed = look_up(members.all)
            failed += refused_of(ready)
            if not failed:
                # One of the two alone is useless.
                ends = run_jobs(
                    ready, StepName.BUNDLE, display, heavy=heavy_at_once(), fail_fast=True
                )
                failed = [end for end in ends if end.error and not end.stopped]
            raise_failures(failed, len(members.all))
            runs = _measure(members, display, pair.in_history)
        keep_small(members.workspace, pair.quiet)
    return runs


def _measure(
    members: Members, display: console.TaskDisplay, in_history: bool
) -> tuple[StoredRun, StoredRun]:
    a, b = members.jobs
    started_s = time.monotonic()
    display.start(_COMPARE)

    def advance(text: str, fraction: float | None = None) -> None:
        display.advance(_COMPARE, text, fraction)

    try:
        runs = run_interleaved(a, b, advance, in_history=in_history)
    except BaseException as error:
        display.end(_COMPARE, "stopped" if isinstance(error, Interrupted) else "failed")
        raise
    pairs = console.count(len(runs[0].record.workload.runs), "pair")
    display.end(_COMPARE, f"{pairs} of starts", time.monotonic() - started_s)
    return runs


@contextmanager
def reading_traces(quiet: bool) -> Iterator[tuple[Workspace, Progress]]:
    """Open the cache of parsed traces, and show the progress of parsing others."""
    workspace = Workspace.opened()
    with (
        workspace.in_use(),
        console.TaskDisplay(quiet=quiet) as display,
        lazy_task(display, "profile", "traces parsed") as tell,
    ):
        yield workspace, tell
    keep_small(workspace, quiet)
