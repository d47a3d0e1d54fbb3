"""Runs tasks on doit; the only module that imports it.

doit orders the tasks, asks which are up to date, and runs independent ones side by side in threads.
What decides is in the steps (`steps.py`), so doit's own notes are not stored.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from etdeploy.core import cancel, console
from etdeploy.core.errors import EtdeployError, Interrupted
from etdeploy.core.plugins import plugin_error
from etdeploy.core.values import Progress
from etdeploy.graph.tasks.steps import (
    Load,
    Slots,
    Step,
    StepLog,
    Task,
    heavy_at_once,
    inputs_now,
    predecessors,
    reasons_to_run,
    remember_inputs,
    tasks_of,
    with_needs,
)

DATABASE = "tasks.sqlite3"
# With many jobs, these are shown once they report progress: then there is something to see.
_QUICK = (Load.LIGHT, Load.BUSY)
_MOST_NAMED = 3


class StepError(Exception):
    """A bug of etdeploy in a step, with the step's name; the cause is chained."""


@dataclass
class TaskRunResult:
    """How a run ended.

    Attributes:
        failures: Of each task that failed, in the order in which they did.
        done: The tasks that ended well or had nothing to do.
        followed: The leaders that were found during the run, by the tasks that came after them.
    """

    failures: dict[str, BaseException] = field(default_factory=dict)
    done: set[str] = field(default_factory=set)
    followed: dict[str, str] = field(default_factory=dict)


def is_stop(error: BaseException) -> bool:
    """Whether a task ended only because the run was asked to stop."""
    return isinstance(error, Interrupted | KeyboardInterrupt)


def as_error(name: str, error: BaseException) -> Exception:
    """The error as the task raised it; a bug with the name of its step."""
    if isinstance(error, EtdeployError):
        return error
    bug = StepError(f"step {name} failed: {error!r}")
    bug.__cause__ = error
    return bug


class Run:
    """What the threads of one run share.

    Args:
        tasks: The whole graph.
        display: What shows it, if anything does.
        brief: Whether to show only what takes time: with many jobs, the rest is noise.
        slots: What the tasks share of this machine.
        stop_at_first: Whether a failure stops what else is under way.
        tell_failures: Whether to print a failure at once: plain doit never shows the error.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        display: console.TaskDisplay | None,
        *,
        brief: bool = False,
        slots: Slots | None = None,
        stop_at_first: bool = False,
        tell_failures: bool = False,
    ) -> None:
        self.ended = TaskRunResult()
        self._display = display
        self._brief = brief
        self._slots = slots or Slots(heavy_at_once())
        self._stop_at_first = stop_at_first
        self._tell_failures = tell_failures
        # doit's threads do not inherit the flag.
        self._flag = cancel.current()
        self._lock = threading.Lock()
        self._begun: dict[str, float] = {}
        self._lines: dict[str, str] = {}
        self._leaders = _known_leaders(tasks)
        # The jobs that came after each leader, as far as that was found during the run.
        self._joined: dict[str, list[str]] = {}

    def act(self, task: Task) -> bool:
        """Runs the task's step in this thread; False if it failed."""
        with cancel.bound(self._flag):
            try:
                self._lines[task.name] = self._do(task)
            except BaseException as error:
                self._failed(task, error)
                return False
            return True

    def ask_leader(self, task: Task) -> dict[str, list[str]] | bool:
        """Now it is known what the task does: the task that does the same, as its dependency."""
        try:
            same = task.step.same.later() if task.step.same else None
        except Exception as error:
            self._failed(task, error)
            return False
        if same is None:
            return {}
        with self._lock:
            leader = self._leaders.setdefault((task.step.name, same), task.name)
            if leader == task.name:
                return {}
            self.ended.followed[task.name] = leader
            self._joined.setdefault(leader, []).append(task.whom)
        return {"task_dep": [leader]}

    def succeeded(self, task: Task) -> None:
        """The task has ended well."""
        self.ended.done.add(task.name)
        self._show_end(task, self._lines.get(task.name, "done") + self._also_for(task))

    def failed(self, task: Task) -> None:
        """The task has failed, or was not begun since something that it needs has failed."""
        if task.name in self.ended.failures:
            self._show_end(task, "stopped" if self._flag.is_set() else "failed", always=True)

    def skipped(self, task: Task) -> None:
        """The task had nothing to do."""
        self.ended.done.add(task.name)
        if not self._is_hidden(task) and not self._brief:
            self._show_end(task, "up to date", always=True)

    def _do(self, task: Task) -> str:
        step, log = task.step, task.log
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("")
        progress = self._progress(task)
        # The device's lock comes before the cores: another run's measurement there would be
        # disturbed by the exports and builds that this one still waits for.
        with (
            self._slots.alone(step.alone()),
            step.holds(progress),
            self._slots.load(Load.LIGHT if self._is_hidden(task) else step.load),
        ):
            if not self._is_hidden(task) and not (self._brief and step.load in _QUICK):
                self._show_start(task)
            inputs = inputs_now(step)
            line = step.action(StepLog(progress, log))
            cancel.checkpoint()
            remember_inputs(step, inputs)
        return line

    def _failed(self, task: Task, error: BaseException) -> None:
        error = plugin_error(error) or error
        lacks_log = isinstance(error, EtdeployError) and error.log is None
        if lacks_log and task.log.is_file() and task.log.stat().st_size:
            error.log = task.log  # type: ignore[attr-defined]
        with self._lock:
            self.ended.failures[task.name] = error
        if self._tell_failures:
            console.message(f"error in {task.shown}: {error}")
        if self._stop_at_first and not is_stop(error):
            cancel.request()

    def _is_hidden(self, task: Task) -> bool:
        """Whether the task only takes over what its leader made, and is shown with that one."""
        return task.leader is not None or task.name in self.ended.followed

    def _also_for(self, task: Task) -> str:
        """Whom else it served, as far as that was found while it ran."""
        with self._lock:
            joined = sorted(self._joined.get(task.name, ()))
        more = f" and {len(joined) - _MOST_NAMED} more" if len(joined) > _MOST_NAMED else ""
        return f"; also for {', '.join(joined[:_MOST_NAMED])}{more}" if joined else ""

    def _progress(self, task: Task) -> Progress:
        def report(text: str, fraction: float | None = None) -> None:
            if self._display and not self._is_hidden(task):
                self._show_start(task)
                self._display.advance(task.shown, text, fraction)

        return report

    def _show_start(self, task: Task) -> None:
        with self._lock:
            if task.name in self._begun:
                return
            self._begun[task.name] = time.monotonic()
        if self._display:
            self._display.start(task.shown)

    def _show_end(self, task: Task, text: str, always: bool = False) -> None:
        begun = self._begun.get(task.name)
        if self._display and (begun is not None or always):
            seconds = time.monotonic() - begun if begun is not None else None
            self._display.end(task.shown, text, seconds)


def cause_of(name: str, tasks: Sequence[Task], ended: TaskRunResult) -> str | None:
    """The task whose failure stopped a task; the task itself if that failed."""
    by_name = {task.name: task for task in tasks}

    def failed_before(name: str, seen: frozenset[str]) -> Iterator[str]:
        if name in ended.failures:
            yield name
        elif name not in ended.done and name not in seen:
            task, found = by_name[name], ended.followed.get(name)
            for before in (*predecessors(task), *([found] if found else [])):
                yield from failed_before(before, seen | {name})

    return next(failed_before(name, frozenset()), None)


def _known_leaders(tasks: Sequence[Task]) -> dict[tuple[str, str], str]:
    """The tasks that others may come after, by what they do, as far as that is known."""
    known = ((t, t.step.same.known()) for t in tasks if t.step.same and not t.leader)
    return {(task.step.name, same): task.name for task, same in known if same is not None}


def run_tasks(
    tasks: Sequence[Task], goals: Sequence[str], run: Run, *, keep_going: bool = False
) -> TaskRunResult:
    """Runs the goals and all tasks that they need; failures are part of the result."""
    chosen = with_needs(tasks, goals)
    # A task may wait in its thread for the device or the cores, and of each job one task can run.
    threads = max(2, len({task.job for task in chosen}))
    config = {
        "GLOBAL": {
            "num_process": threads,
            "par_type": "thread",
            "verbosity": 0,
            "continue": keep_going,
        }
    }
    loader = _loader(_task_dicts(run, chosen), _reporter_for(run, chosen))
    command = _run_command()(task_loader=loader, config=config, bin_name="etdeploy")
    code = command.parse_execute(list(goals))
    if code and not run.ended.failures:
        raise StepError(f"the task engine ended with code {code}")
    return run.ended


def plain_doit_tasks(
    steps: tuple[Step, ...], state: Path
) -> tuple[Iterator[dict[str, Any]], dict[str, Any]]:
    """The same tasks and configuration for a dodo.py that the `doit` command reads."""
    tasks = tasks_of([(steps, state)])
    run = Run(tasks, console.TaskDisplay(live=False), tell_failures=True)
    state.mkdir(parents=True, exist_ok=True)
    config = {
        "dep_file": str(state / DATABASE),
        "backend": "sqlite3",
        "default_tasks": [steps[-1].name],
        "reporter": _reporter_for(run, tasks),
    }
    return ({"basename": d.pop("name"), **d} for d in _task_dicts(run, tasks)), config


def doit_variable(name: str, default: str | None = None) -> str | None:
    """A `name=value` of doit's command line."""
    from doit import get_var

    value: str | None = get_var(name, default)
    return value


def _task_dicts(run: Run, tasks: Sequence[Task]) -> list[dict[str, Any]]:
    """Doit's description of each task, and of what asks whether another one does the same."""
    dicts = []
    for task in tasks:
        before = [*task.needs, *([task.leader] if task.leader else [])]
        asks = [_asking(run, task)] if task.asks_after else []
        dicts += asks
        dicts.append(
            {
                "name": task.name,
                "doc": task.step.title,
                "actions": [(run.act, [task])],
                "task_dep": before,
                "calc_dep": [ask["name"] for ask in asks],
                "targets": [str(task.step.output)],
                "uptodate": [(_is_current, [task.step])],
                "io": {"capture": False},
                "verbosity": 0,
            }
        )
    return dicts


def _asking(run: Run, task: Task) -> dict[str, Any]:
    """A task that gives another one its last dependency, when it is known what that does."""
    return {
        "name": f"{task.name}?",
        "actions": [(run.ask_leader, [task])],
        "task_dep": [task.asks_after],
        "io": {"capture": False},
        "verbosity": 0,
    }


def _is_current(step: Step) -> bool:
    return not reasons_to_run(step)


class _NoNotes:
    """doit's store for its own notes, which nothing reads after the run."""

    def __init__(self, name: str, codec: Any, **_: Any) -> None:
        self.name, self.codec = name, codec
        self._notes: dict[str, dict[str, Any]] = {}

    def get(self, task_id: str, dependency: str) -> Any:
        return self._notes.get(task_id, {}).get(dependency)

    def set(self, task_id: str, dependency: str, value: Any) -> None:
        self._notes.setdefault(task_id, {})[dependency] = value

    def in_(self, task_id: str) -> bool:
        return task_id in self._notes

    def remove(self, task_id: str) -> None:
        self._notes.pop(task_id, None)

    def remove_all(self) -> None:
        self._notes.clear()

    def dump(self) -> None:
        """Stores nothing."""


def _run_command() -> Any:
    from doit.cmd_run import Run as DoitRun

    class Command(DoitRun):  # type: ignore[misc]  # doit has no types
        """doit's `run` without plugins.

        They would change what a run does, and to find them doit reads the metadata of every
        installed package, three times.
        """

        def get_reporters(self) -> dict[str, Any]:
            return {}

        def get_backends(self) -> dict[str, Any]:
            return {"none": _NoNotes}

    return Command


def _loader(dicts: list[dict[str, Any]], reporter: Any) -> Any:
    from doit.cmd_base import TaskLoader2
    from doit.task import dict_to_task

    class Loader(TaskLoader2):  # type: ignore[misc]  # doit has no types
        """Gives doit the tasks of this run instead of a dodo.py."""

        def load_doit_config(self) -> dict[str, Any]:
            return {"dep_file": "", "backend": "none", "reporter": reporter}

        def load_tasks(self, cmd: Any, pos_args: Any) -> list[Any]:  # noqa: ARG002
            return [dict_to_task(d) for d in dicts]

    return Loader()


def _reporter_for(run: Run, tasks: Sequence[Task]) -> Any:
    from doit.reporter import ZeroReporter

    by_name = {task.name: task for task in tasks}

    class Reporter(ZeroReporter):  # type: ignore[misc]  # doit has no types
        """Passes doit's events on; the run itself keeps the failures and the times."""

        def add_success(self, task: Any) -> None:
            if task.name in by_name:
                run.succeeded(by_name[task.name])

        def add_failure(self, task: Any, fail: Any) -> None:  # noqa: ARG002
            if task.name in by_name:
                run.failed(by_name[task.name])

        def skip_uptodate(self, task: Any) -> None:
            if task.name in by_name:
                run.skipped(by_name[task.name])

        def runtime_error(self, msg: str) -> None:
            raise StepError(msg)

    return Reporter
