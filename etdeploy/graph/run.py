"""Runs jobs as one graph: identical work is shared, and one failure stops nobody else.

One recipe on one device is a graph of one job.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from etdeploy.core import cancel, console
from etdeploy.core.errors import EtdeployError, Interrupted
from etdeploy.core.files.basic import disk_full_error, find_disk_full
from etdeploy.core.plugins import attributed
from etdeploy.export.preload import OWN_PROCESSES, Exporter, preloaded_exports
from etdeploy.export.spec import ExportSpec
from etdeploy.graph.job import StepName
from etdeploy.graph.jobs import Member, RecipeDevicePair, served
from etdeploy.graph.pipeline import export_work, make_steps
from etdeploy.graph.preflight import model_notes, refuse_early
from etdeploy.graph.resolve import Lookups, Resolved, resolve
from etdeploy.graph.tasks.engine import Run, TaskRunResult, as_error, cause_of, is_stop, run_tasks
from etdeploy.graph.tasks.steps import Slots, Task, tasks_of
from etdeploy.recipe.rules.remedies import remedies_for


@dataclass(frozen=True)
class Ready:
    """A job that may start, with everything that was looked up for it."""

    member: Member
    resolved: Resolved


@dataclass(frozen=True)
class JobEnd:
    """How a job ended.

    Attributes:
        error: Why it failed; None if it did not.
        same_as: The job whose failed work it shares, if the error is reported there.
    """

    member: Member
    error: Exception | None = None
    same_as: RecipeDevicePair | None = None

    @property
    def stopped(self) -> bool:
        """Whether it only ended because the run was stopped."""
        return self.error is not None and is_stop(self.error)


def look_up(members: Sequence[Member]) -> tuple[list[Ready], list[JobEnd]]:
    """Look everything up, once for all jobs that need the same; the jobs for which that failed."""
    lookups = Lookups()
    ready, failed = [], []
    for member in members:
        try:
            job = member.require_job()
            with attributed(), remedies_for(job.loaded.recipe):
                resolved = resolve(job, lookups)
                model_notes(resolved)
            ready.append(Ready(member, resolved))
        except EtdeployError as error:
            failed.append(JobEnd(member, error))
    return ready, failed


def refused_of(ready: Sequence[Ready], goal: StepName = StepName.BENCH) -> list[JobEnd]:
    """The jobs that cannot reach the goal, as far as that is known before anything starts."""
    refused = []
    for each in ready:
        try:
            with attributed():
                refuse_early(
                    each.resolved,
                    with_runner=goal != StepName.EXPORT,
                    measures=goal == StepName.BENCH,
                )
        except EtdeployError as error:
            refused.append(JobEnd(each.member, error))
    return refused


def run_jobs(
    ready: Sequence[Ready],
    goal: StepName,
    display: console.TaskDisplay,
    *,
    heavy: int,
    fail_fast: bool = False,
    slots: Slots | None = None,
    brief: bool = True,
) -> list[JobEnd]:
    """Run the goal of every job and all that it needs; `heavy` exports and builds at once.

    With `fail_fast` the first failure stops the others. `slots` are shared with other work on this
    machine. `brief` shows only tasks that take time, with the jobs that they serve.
    """
    ends: dict[RecipeDevicePair, JobEnd] = {}
    left = list(ready)
    slots = slots or Slots(heavy)
    while left:
        # The flag is this run's own: a failure can stop it without stopping what comes after it.
        with cancel.trapped_signals(), preloaded_exports(_to_export(left)) as exporter:
            tasks = graph_of(left, exporter)
            if brief:
                display.make_room([task.shown for task in tasks])
            else:
                tasks = tuple(replace(task, shown=task.step.name) for task in tasks)
            goals = tuple(task.name for task in tasks if task.step.name == goal)
            run = Run(tasks, display, brief=brief, slots=slots, stop_at_first=fail_fast)
            ended = run_tasks(tasks, goals, run, keep_going=not fail_fast)
        cancel.checkpoint()
        now = [_end_of(each, goal, tasks, ended, left) for each in left]
        ends |= {end.member.pair: end for end in now if end is not None}
        # What waited for another job's task that was never begun runs without that job.
        left = [] if fail_fast else [each for each, end in zip(left, now, strict=True) if not end]
    return [ends.get(each.member.pair, JobEnd(each.member, Interrupted())) for each in ready]


def _to_export(ready: Sequence[Ready]) -> Iterable[ExportSpec]:
    """What is not exported yet, each program once."""
    new = [r.resolved for r in ready if r.resolved.exported is None]
    return {export_work(resolved): resolved.export_spec for resolved in new}.values()


def graph_of(ready: Sequence[Ready], exporter: Exporter = OWN_PROCESSES) -> tuple[Task, ...]:
    """The shared graph of the jobs, with names that say whom each task serves."""
    tasks = tasks_of([(make_steps(r.resolved, exporter), r.resolved.job.state) for r in ready])
    everyone = [r.member.pair for r in ready]
    followers: dict[str, list[RecipeDevicePair]] = {}
    for task in tasks:
        if task.leader:
            followers.setdefault(task.leader, []).append(everyone[task.job])
    return tuple(_named(task, followers.get(task.name, []), everyone) for task in tasks)


def _named(
    task: Task, followers: Sequence[RecipeDevicePair], everyone: Sequence[RecipeDevicePair]
) -> Task:
    own = everyone[task.job]
    shown = f"{task.step.name} {served([own, *followers], everyone)}"
    return replace(task, shown=shown, whom=served([own], everyone))


def _end_of(
    each: Ready, goal: StepName, tasks: Sequence[Task], ended: TaskRunResult, ready: Sequence[Ready]
) -> JobEnd | None:
    """How a job ended; None if it could not begin only because of another job's own failure."""
    number = next(i for i, other in enumerate(ready) if other is each)
    own = [task for task in tasks if task.job == number]
    [last] = [task for task in own if task.step.name == goal]
    if last.name in ended.done:
        return JobEnd(each.member)
    cause = next((task for task in tasks if task.name == cause_of(last.name, tasks, ended)), None)
    if cause is None or is_stop(ended.failures[cause.name]):
        return JobEnd(each.member, Interrupted())
    error = _for_users(cause, ended.failures[cause.name], each)
    if cause.job == number:
        return JobEnd(each.member, error)
    # The tasks of other jobs that did this job's work.
    leaders = {task.leader or ended.followed.get(task.name) for task in own}
    return (
        JobEnd(each.member, error, ready[cause.job].member.pair) if cause.name in leaders else None
    )


def _for_users(task: Task, error: BaseException, each: Ready) -> Exception:
    """The error of a task; that of a full disk, which any code may meet, in its own words."""
    full = None if isinstance(error, EtdeployError) else find_disk_full(error)
    if full is None:
        return as_error(task.step.name, error)
    return disk_full_error(
        full, each.resolved.job.workspace.root, doing=f"the step {task.step.name}"
    )
