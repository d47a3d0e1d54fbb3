"""What `etdeploy plan` shows of several jobs: each by itself, and the graph that they share."""

from __future__ import annotations

from collections.abc import Sequence

from etdeploy.core.values import Value
from etdeploy.graph.explain import Explanation, colours, explain, task_of
from etdeploy.graph.many.members import RecipeDevicePair, served
from etdeploy.graph.many.run import Ready
from etdeploy.graph.pipeline import make_steps
from etdeploy.graph.tasks.steps import Task, TaskStatus, statuses, tasks_of


class Served(Value):
    """A job that needs a task."""

    recipe: str
    device: str


class SharedTask(Value):
    """A task of the graph, done once for all of its jobs; `value` is "run" or "up to date".

    `expected` says that the jobs share it only if their programs are what their recipes let expect:
    they are not exported yet.
    """

    name: str
    step: str
    title: str
    jobs: tuple[Served, ...]
    expected: bool
    value: str
    reason: str
    needs: tuple[str, ...]


class GraphExplanation(Value):
    """Everything that `etdeploy plan` shows of several jobs; its JSON form is an interface."""

    jobs: tuple[Explanation, ...]
    tasks: tuple[SharedTask, ...]


def explain_graph(ready: Sequence[Ready]) -> GraphExplanation:
    """Explains what one run of all jobs would do."""
    tasks = tasks_of([(make_steps(r.resolved), r.resolved.job.state) for r in ready])
    goals = [[task.name for task in tasks if task.job == i][-1] for i in range(len(ready))]
    leaders = _leaders(tasks)
    members: dict[str, list[TaskStatus]] = {}
    for status in statuses(tasks, goals):
        members.setdefault(leaders[status.task.name], []).append(status)
    everyone = [r.member.pair for r in ready]
    names = {
        leader: " ".join(
            (group[0].task.step.name, served([everyone[s.task.job] for s in group], everyone))
        )
        for leader, group in members.items()
    }
    return GraphExplanation(
        jobs=tuple(explain(r.resolved) for r in ready),
        tasks=tuple(_shared(group, ready, everyone, names, leaders) for group in members.values()),
    )


def _leaders(tasks: Sequence[Task]) -> dict[str, str]:
    """For each task the one that does its work, as far as recipes and programs let expect."""
    first: dict[tuple[str, str], str] = {}
    leaders = {}
    for task in tasks:
        same = task.step.same
        work = same and (same.known() or same.expected())
        leaders[task.name] = (
            first.setdefault((task.step.name, work), task.name) if work else task.name
        )
    return leaders


def _shared(
    group: Sequence[TaskStatus],
    ready: Sequence[Ready],
    everyone: Sequence[RecipeDevicePair],
    names: dict[str, str],
    leaders: dict[str, str],
) -> SharedTask:
    shown = [task_of(s, ready[s.task.job].resolved.exported is not None) for s in group]
    # Of jobs that have it and one that does not, the one that gives the task something to do.
    telling = next((each for each in shown if each.value == "run"), shown[0])
    first = group[0].task
    return SharedTask(
        name=names[leaders[first.name]],
        step=first.step.name,
        title=first.step.title,
        jobs=tuple(Served(**everyone[s.task.job]._asdict()) for s in group),
        expected=len(group) > 1 and any(s.task.asks_after for s in group),
        value=telling.value,
        reason=telling.reason,
        needs=tuple(dict.fromkeys(names[leaders[n]] for s in group for n in s.task.needs)),
    )


def mermaid(graph: GraphExplanation) -> str:
    """The shared graph as a Mermaid flowchart; tasks that would run are filled."""
    ids = {task.name: f"t{number}" for number, task in enumerate(graph.tasks)}
    lines = ["flowchart LR"]
    for task in graph.tasks:
        state = "would run" if task.value == "run" else "up to date"
        expected = ", if the programs are as expected" if task.expected else ""
        label = f"{_text(task.name)}<br/>{task.title}<br/><i>{state}{expected}</i>"
        lines.append(f'    {ids[task.name]}["{label}"]')
    lines += [
        f"    {ids[need]} --> {ids[task.name]}" for task in graph.tasks for need in task.needs
    ]
    return "\n".join([*lines, *colours([(ids[task.name], task.value) for task in graph.tasks])])


def _text(name: str) -> str:
    """A name in a node: quotes would end it, and angle brackets would be markup."""
    return name.replace('"', "'").replace("<", "(").replace(">", ")")
