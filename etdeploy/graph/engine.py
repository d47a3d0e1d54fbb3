"""Runs steps on doit; the only module that imports it.

doit decides what is up to date, orders the steps, runs independent ones side by side in threads
and keeps its state in an SQLite file. Its file dependencies are only small JSON values; the cache
verifies the large artefacts that they point to.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etdeploy.core import cancel, console
from etdeploy.core.errors import EtdeployError, Interrupted
from etdeploy.core.files.basic import write_atomic
from etdeploy.core.progress import Progress
from etdeploy.graph.steps import Step, StepLog, reasons_to_run, with_needs

DATABASE = "tasks.sqlite3"


@dataclass(frozen=True)
class StepStatus:
    """Whether a step would run, and why."""

    name: str
    title: str
    would_run: bool
    reasons: tuple[str, ...]


class StepError(Exception):
    """A bug of etdeploy in a step, with the step's name; the cause is chained."""


def run_steps(
    steps: tuple[Step, ...],
    names: tuple[str, ...],
    state: Path,
    display: console.TaskDisplay,
    parallel: int = 2,
) -> None:
    """Runs the named steps and all steps that they need.

    Raises:
        EtdeployError: The first failure, as the step raised it, with the step's log.
        Interrupted: The run was asked to stop; the state of finished steps is kept.
    """
    state.mkdir(parents=True, exist_ok=True)
    run = _Run(state, display)
    loader = _loader(run.task_dicts(steps), state, _reporter_for(run))
    config = {"GLOBAL": {"num_process": parallel, "par_type": "thread", "verbosity": 0}}
    command = _run_command()(task_loader=loader, config=config, bin_name="etdeploy")
    run.raise_failure(command.parse_execute(list(names)))


def step_statuses(
    steps: tuple[Step, ...], names: tuple[str, ...], state: Path
) -> tuple[StepStatus, ...]:
    """What a run would do; nothing is run."""
    from doit.dependency import Dependency, SqliteDB

    chosen = with_needs(steps, names)
    database = state / DATABASE
    manager = Dependency(SqliteDB, str(database)) if database.is_file() else None
    tasks = {t.name: t for t in _tasks(_Run(state, None).task_dicts(steps))}
    found: dict[str, StepStatus] = {}
    for step in chosen:
        found[step.name] = _status(step, found, manager, tasks)
    return tuple(found.values())


def plain_doit_tasks(
    steps: tuple[Step, ...], state: Path
) -> tuple[Iterator[dict[str, Any]], dict[str, Any]]:
    """The same tasks and configuration for a dodo.py that the `doit` command reads."""
    run = _Run(state, console.TaskDisplay(live=False), print_failures=True)
    state.mkdir(parents=True, exist_ok=True)
    config = {
        "dep_file": str(state / DATABASE),
        "backend": "sqlite3",
        "default_tasks": [steps[-1].name],
        "reporter": _reporter_for(run),
    }
    return ({"basename": d.pop("name"), **d} for d in run.task_dicts(steps)), config


def doit_variable(name: str, default: str | None = None) -> str | None:
    """A `name=value` of doit's command line."""
    from doit import get_var

    value: str | None = get_var(name, default)
    return value


def _status(
    step: Step, before: Mapping[str, StepStatus], manager: Any, tasks: Mapping[str, Any]
) -> StepStatus:
    """The first that gives reasons: the step itself, the steps before it, doit."""
    reasons = reasons_to_run(step)
    waiting = [n for n in step.needs if before[n].would_run]
    if not reasons and waiting:
        reasons = [f"after {', '.join(waiting)}, if that changes its input"]
    if not reasons and manager is None:
        reasons = ["it has not run yet"]
    if not reasons:
        status = manager.get_status(tasks[step.name], tasks, get_log=True)
        if status.status != "up-to-date":
            changed = status.reasons.get("changed_file_dep") or ()
            names = ", ".join(Path(p).stem for p in changed)
            reasons = [f"the output of {names} changed" if names else "its inputs changed"]
    return StepStatus(step.name, step.title, bool(reasons), tuple(reasons))


class _Run:
    """One run: its failures, times and messages, shared by the worker threads."""

    def __init__(
        self, state: Path, display: console.TaskDisplay | None, print_failures: bool = False
    ) -> None:
        self.state = state
        self.display = display
        # Plain doit exits with its own code and never shows the error.
        self._print_failures = print_failures
        # doit's threads do not inherit the flag.
        self._flag = cancel.current()
        self._failures: list[tuple[str, BaseException]] = []
        self._lock = threading.Lock()
        self._started: dict[str, float] = {}
        self._lines: dict[str, str] = {}

    def task_dicts(self, steps: tuple[Step, ...]) -> list[dict[str, Any]]:
        outputs = {step.name: step.output for step in steps}
        return [
            {
                "name": step.name,
                "doc": step.title,
                "actions": [(self._act, [step])],
                "file_dep": [str(outputs[n]) for n in step.needs],
                "task_dep": list(step.needs),
                "targets": [str(step.output)],
                "uptodate": [(_is_current, [step])],
                "io": {"capture": False},
                "verbosity": 0,
            }
            for step in steps
        ]

    def _act(self, step: Step) -> bool:
        with cancel.bound(self._flag):
            return self._do(step)

    def _do(self, step: Step) -> bool:
        log = self.state / "logs" / f"{step.name}.log"
        try:
            log.parent.mkdir(parents=True, exist_ok=True)
            log.write_text("")
            line = step.action(StepLog(self._progress(step.name), log))
            cancel.checkpoint()
            _remember_inputs(step)
        except BaseException as error:
            if isinstance(error, EtdeployError) and error.log is None and log.stat().st_size:
                error.log = log
            with self._lock:
                self._failures.append((step.name, error))
            if self._print_failures:
                console.message(f"error in {step.name}: {error}")
            return False
        self._lines[step.name] = line
        return True

    def _progress(self, name: str) -> Progress:
        def report(text: str, fraction: float | None = None) -> None:
            if self.display:
                self.display.advance(name, text, fraction)

        return report

    def started(self, name: str) -> None:
        self._started[name] = time.monotonic()
        if self.display:
            self.display.start(name)

    def ended(self, name: str, text: str | None = None) -> None:
        seconds = time.monotonic() - self._started[name] if name in self._started else None
        if self.display:
            self.display.end(name, text or self._lines.get(name, "done"), seconds)

    def raise_failure(self, code: int) -> None:
        for name, error in self._failures:
            if isinstance(error, EtdeployError) and not isinstance(error, Interrupted):
                raise error
            if not isinstance(error, Interrupted | KeyboardInterrupt):
                raise StepError(f"step {name} failed: {error!r}") from error
        cancel.checkpoint()
        if self._failures:
            raise Interrupted
        if code:
            raise StepError(f"the task engine ended with code {code}")


def _is_current(step: Step) -> bool:
    return not reasons_to_run(step)


def _remember_inputs(step: Step) -> None:
    import json

    write_atomic(step.inputs_path, json.dumps(step.inputs, indent=1))


def _tasks(dicts: list[dict[str, Any]]) -> list[Any]:
    from doit.task import dict_to_task

    return [dict_to_task(d) for d in dicts]


def _run_command() -> Any:
    from doit.cmd_run import Run
    from doit.dependency import SqliteDB

    class Command(Run):  # type: ignore[misc]  # doit has no types
        """doit's `run` without plugins.

        They would change what a run does, and to find them doit reads the metadata of every
        installed package, three times.
        """

        def get_reporters(self) -> dict[str, Any]:
            return {}

        def get_backends(self) -> dict[str, Any]:
            return {"sqlite3": SqliteDB}

    return Command


def _loader(dicts: list[dict[str, Any]], state: Path, reporter: Any) -> Any:
    from doit.cmd_base import TaskLoader2

    class Loader(TaskLoader2):  # type: ignore[misc]  # doit has no types
        """Gives doit the steps of this run instead of a dodo.py."""

        def load_doit_config(self) -> dict[str, Any]:
            return {
                "dep_file": str(state / DATABASE),
                "backend": "sqlite3",
                "reporter": reporter,
            }

        def load_tasks(self, cmd: Any, pos_args: Any) -> list[Any]:  # noqa: ARG002
            return _tasks(dicts)

    return Loader()


def _reporter_for(run: _Run) -> Any:
    from doit.reporter import ZeroReporter

    class Reporter(ZeroReporter):  # type: ignore[misc]  # doit has no types
        """Passes doit's events to the display; the run itself keeps the failures."""

        def execute_task(self, task: Any) -> None:
            run.started(task.name)

        def add_success(self, task: Any) -> None:
            run.ended(task.name)

        def add_failure(self, task: Any, fail: Any) -> None:  # noqa: ARG002
            run.ended(task.name, "failed" if not cancel.requested() else "stopped")

        def skip_uptodate(self, task: Any) -> None:
            run.ended(task.name, "up to date")

        def runtime_error(self, msg: str) -> None:
            raise StepError(msg)

    return Reporter
