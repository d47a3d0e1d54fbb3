"""A step of the pipeline: it makes a typed value in a file from other steps' values.

Whether a step is up to date is decided here alone, by what stands beside its value: the inputs of
its last run, and digests of the values that it read. So it does not matter which steps, and which
jobs, were run together.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from etdeploy.core import cancel
from etdeploy.core.files.basic import write_atomic
from etdeploy.core.hashing import sha256_file
from etdeploy.core.values import Progress, StrEnum, Value

# How often a waiting task looks whether the run was asked to stop.
_POLL_S = 0.2
# An export or a build of a model of ordinary size stays below this.
_HEAVY_BYTES = 3 << 30
_MOST_HEAVY = 4


class Load(StrEnum):
    """What a step does to this machine while it runs."""

    LIGHT = "light"
    """Next to nothing."""
    BUSY = "busy"
    """It uses the cores: never beside a measurement on them."""
    HEAVY = "heavy"
    """The same, and much memory: only so many at once."""
    MEASURES = "measures"
    """It measures on this machine's cores: nothing else may use them."""


def heavy_at_once() -> int:
    """How many exports and builds this machine does at once: by cores and memory, 4 at most."""
    try:
        memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):  # this system does not say
        memory_bytes = _HEAVY_BYTES
    return max(1, min(_MOST_HEAVY, os.cpu_count() or 1, memory_bytes // _HEAVY_BYTES))


class Slots:
    """Who uses what right now.

    Exports and builds go before measurements on the same cores: a measurement begins when none is
    under way. There is only so much of them, so it cannot wait forever.
    """

    def __init__(self, heavy: int) -> None:
        self._heavy = heavy
        self._loads: list[Load] = []
        self._in_use: set[str] = set()
        self._changed = threading.Condition()

    @contextmanager
    def load(self, load: Load) -> Iterator[None]:
        """Waits until a step with that load may run, and counts it while the block runs.

        Raises:
            Interrupted: The run was stopped while waiting.
        """
        with self._changed:
            self._wait(lambda: self._has_room(load))
            self._loads.append(load)
        try:
            yield
        finally:
            with self._changed:
                self._loads.remove(load)
                self._changed.notify_all()

    @contextmanager
    def alone(self, name: str | None) -> Iterator[None]:
        """Waits until nobody else uses what has that name; None for nothing to wait for."""
        if name is None:
            yield
            return
        with self._changed:
            self._wait(lambda: name not in self._in_use)
            self._in_use.add(name)
        try:
            yield
        finally:
            with self._changed:
                self._in_use.remove(name)
                self._changed.notify_all()

    def _has_room(self, load: Load) -> bool:
        if load is Load.LIGHT:
            return True
        if Load.MEASURES in self._loads:
            return False
        if load is Load.MEASURES:
            return not {Load.BUSY, Load.HEAVY} & set(self._loads)
        return load is Load.BUSY or self._loads.count(Load.HEAVY) < self._heavy

    def _wait(self, ready: Callable[[], bool]) -> None:
        while not ready():
            cancel.checkpoint()
            self._changed.wait(_POLL_S)
        cancel.checkpoint()


OTHER_RELEASE = "its last result was cut short, or another release of etdeploy wrote it"


def nothing() -> None:
    """Default: no exclusive resource, no dedup key."""


@dataclass(frozen=True)
class DedupKey:
    """Tells steps of different jobs that do the same work, so that it is done once.

    Attributes:
        known: Equal for such steps; None if that is not known when the graph is made: a program
            that is not exported yet decides which runner is needed.
        after: The step after which it is known.
        later: The same as `known`, after that step.
        expected: What `known` will be if the program is what the recipe lets expect.
    """

    known: Callable[[], str | None]
    after: str | None = None
    later: Callable[[], str | None] = nothing
    expected: Callable[[], str | None] = nothing


@dataclass(frozen=True)
class StepLog:
    """What an action may use while it runs."""

    progress: Progress
    log: Path


@dataclass(frozen=True)
class Step:
    """One arrow of the pipeline.

    Attributes:
        name: As `doit list`, the display and the log file name it.
        title: What it does, for the user.
        needs: Steps whose output it reads; all steps of a job write to one folder.
        after: Steps that run before it if they are in the graph, and whose output it does not read.
        output: The JSON value that it writes.
        value: The type of that value; the step runs again if the file contains anything else.
        inputs: Everything else that determines the output, by name; a change is a reason to run.
        sound: Why what the output points to is missing or damaged; None if it is not. Called only
            if the output itself can be read.
        action: Does the work, writes `output`, and returns a line for the user.
        always: Whether it runs whenever it is selected (the device may have changed meanwhile).
        load: What it does to this machine while it runs.
        alone: Names what only one step of the run may use at a time: a device, a checkout.
        holds: What it holds while it runs, against other runs; may wait, and says so.
        same: How to tell whether a step of another job does the same work.
    """

    name: str
    title: str
    output: Path
    action: Callable[[StepLog], str]
    needs: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    inputs: Mapping[str, Any] = field(default_factory=dict)
    sound: Callable[[], str | None] | None = None
    always: bool = False
    value: type[Value] | None = None
    load: Load = Load.LIGHT
    alone: Callable[[], str | None] = nothing
    holds: Callable[[Progress], AbstractContextManager[object]] = nullcontext
    same: DedupKey | None = None

    def output_of(self, need: str) -> Path:
        """The value of a step that this one needs."""
        return self.output.with_name(f"{need}.json")

    @property
    def inputs_path(self) -> Path:
        """The file with the inputs of the last run, which show what changed."""
        return self.output.with_suffix(".inputs.json")


def own_reasons(step: Step) -> list[str]:
    """Why the step would run even if the steps that it needs gave what they gave before."""
    return _reasons(step, dict(step.inputs), ignored=_read_values(step))


def reasons_to_run(step: Step) -> list[str]:
    """Why the step would run, from what it reads and from its output; empty if it would not."""
    return _reasons(step, inputs_now(step))


def inputs_now(step: Step) -> dict[str, Any]:
    """Everything that determines the output now; stored when the step runs."""
    return {**step.inputs, **_read_values(step)}


def remember_inputs(step: Step, inputs: Mapping[str, Any]) -> None:
    """Keeps what the output was made from, for the next run's comparison."""
    write_atomic(step.inputs_path, json.dumps(inputs, indent=1))


def _reasons(step: Step, inputs: Mapping[str, Any], ignored: Iterable[str] = ()) -> list[str]:
    if step.always:
        return ["the device is checked each time"]
    if not step.output.is_file():
        return ["it has not run yet"]
    if step.value and step.value.load_or_none(step.output) is None:
        return [OTHER_RELEASE]
    reasons = _changed(step, inputs, set(ignored))
    if not reasons and step.sound and (problem := step.sound()):
        reasons.append(problem)
    return reasons


def _changed(step: Step, inputs: Mapping[str, Any], ignored: set[str]) -> list[str]:
    """What changed since the step's last run, as sentences."""
    try:
        before = json.loads(step.inputs_path.read_bytes())
    except (OSError, ValueError):
        return ["it has not run yet"]
    if not isinstance(before, dict):
        return [OTHER_RELEASE]
    now = json.loads(json.dumps(inputs))
    gone = [name for name in before if name not in now and name not in ignored]
    return [
        f"{name} changed{_from_to(before.get(name), value)}"
        for name, value in now.items()
        if before.get(name) != value
    ] + [f"{name} is no longer given" for name in gone]


def _read_values(step: Step) -> dict[str, str | None]:
    """Digests of the values that the step reads; None for one that is not there yet."""
    return {f"the output of {name}": _digest(step.output_of(name)) for name in step.needs}


def _digest(path: Path) -> str | None:
    try:
        return sha256_file(path)
    except OSError:
        return None


def _from_to(before: object, now: object) -> str:
    short = all(isinstance(v, str | int | float | bool | None) for v in (before, now))
    texts = [str(v) for v in (before, now)]
    return f" from {texts[0]} to {texts[1]}" if short and max(map(len, texts)) < 40 else ""


@dataclass(frozen=True)
class Task:
    """A step of one job, in a graph.

    Attributes:
        name: Unique in the graph.
        step: What it does.
        job: Number of the job in the graph.
        log: What its action writes to.
        needs: Names of the tasks whose values it reads, or that come first.
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
        tuple(names[need] for need in (*step.needs, *step.after)),
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
        read = (n for n in task.needs if found[n].task.step.name not in task.step.after)
        waiting = [n for n in read if found[n].would_run]
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
