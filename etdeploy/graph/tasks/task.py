"""Tasks: the steps of one or several jobs as one graph, where the same work is done once.

Each job keeps its own values, so that it does not matter later which jobs were run together. Of
steps that do the same work, the first leads: it does the work, and the others come after it and
find it done. They are one task to the user.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from etdeploy.graph.tasks.steps import Step, reasons_to_run


@dataclass(frozen=True)
class Task:
    """A step of one job, in a graph.

    Attributes:
        name: Unique in the graph.
        step: What it does.
        job: Number of the job in the graph.
        log: What its action writes to.
        needs: Names of the tasks whose values it reads.
        leader: The task of another job that does the same work, and comes first.
        asks_after: The task after which it is known whether another job needs the same work; None
            if it is known now.
        shown: What the display calls it.
        whom: The job that it belongs to, for the display.
    """

    name: str
    step: Step
    job: int
    log: Path
    needs: tuple[str, ...]
    leader: str | None = None
    asks_after: str | None = None
    shown: str = ""
    whom: str = ""


@dataclass(frozen=True)
class TaskStatus:
    """Whether a task would run, and why."""

    task: Task
    would_run: bool
    reasons: tuple[str, ...]


def tasks_of(jobs: Sequence[tuple[Sequence[Step], Path]]) -> tuple[Task, ...]:
    """The graph of several jobs, each with its steps and the folder of its state.

    The tasks of one job alone have the names of their steps.
    """
    single = len(jobs) == 1
    leaders: dict[tuple[str, str], str] = {}
    tasks = []
    for number, (steps, folder) in enumerate(jobs):
        names = {step.name: step.name if single else f"{step.name}.{number}" for step in steps}
        for step in steps:
            task = _task(step, number, folder, names)
            tasks.append(task if single else _shared(task, names, leaders))
    return tuple(tasks)


def _task(step: Step, job: int, folder: Path, names: Mapping[str, str]) -> Task:
    return Task(
        names[step.name],
        step,
        job,
        folder / "logs" / f"{step.name}.log",
        tuple(names[need] for need in step.needs),
        shown=step.name,
    )


def _shared(task: Task, names: Mapping[str, str], leaders: dict[tuple[str, str], str]) -> Task:
    same = task.step.same
    if same is None:
        return task
    known = same.known()
    if known is None:
        return replace(task, asks_after=names[same.after]) if same.after else task
    leader = leaders.setdefault((task.step.name, known), task.name)
    return task if leader == task.name else replace(task, leader=leader)


def statuses(tasks: Sequence[Task], goals: Sequence[str]) -> tuple[TaskStatus, ...]:
    """What a run of the goals would do; nothing is run."""
    found: dict[str, TaskStatus] = {}
    for task in with_needs(tasks, goals):
        reasons = reasons_to_run(task.step)
        waiting = [n for n in task.needs if found[n].would_run]
        if not reasons and waiting:
            names = ", ".join(found[n].task.step.name for n in waiting)
            reasons = [f"after {names}, if that changes its input"]
        found[task.name] = TaskStatus(task, bool(reasons), tuple(reasons))
    return tuple(found.values())


def with_needs(tasks: Sequence[Task], goals: Sequence[str]) -> tuple[Task, ...]:
    """The named tasks and all that have to come before them, in order."""
    by_name = {task.name: task for task in tasks}
    wanted: set[str] = set()

    def visit(name: str) -> None:
        if name not in wanted:
            wanted.add(name)
            for before in predecessors(by_name[name]):
                visit(before)

    for goal in goals:
        visit(goal)
    return tuple(task for task in tasks if task.name in wanted)


def predecessors(task: Task) -> Iterator[str]:
    """The tasks that have to come before a task, as far as that is known when the graph is made."""
    yield from task.needs
    if task.leader:
        yield task.leader
    if task.asks_after and task.asks_after not in task.needs:
        yield task.asks_after
