"""Runs tasks on doit; the only module that imports it.

doit orders the tasks, asks which are up to date, and runs independent ones side by side in threads.
What decides is in the steps (`steps.py`), so doit's own notes are not kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from etdeploy.core import console
from etdeploy.graph.tasks.running import Run, StepError, TaskRunResult
from etdeploy.graph.tasks.steps import Step, Task, reasons_to_run, tasks_of, with_needs

DATABASE = "tasks.sqlite3"


def run_steps(
    steps: tuple[Step, ...], names: tuple[str, ...], state: Path, display: console.TaskDisplay
) -> None:
    """Runs the named steps of one job, and all steps that they need.

    Raises:
        EtdeployError: The first failure, as the step raised it, with the step's log.
        Interrupted: The run was asked to stop; finished steps are kept.
    """
    tasks = tasks_of([(steps, state)])
    run_tasks(tasks, names, Run(tasks, display)).raise_first()


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
        """Nothing is kept."""


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
