"""One run of tasks: what each does in its thread, how it ended, and what the user is shown."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from etdeploy.core import cancel, console
from etdeploy.core.errors import EtdeployError, Interrupted
from etdeploy.core.plugins import plugin_error
from etdeploy.core.values import Progress
from etdeploy.graph.tasks.steps import (
    Load,
    Slots,
    StepLog,
    Task,
    heavy_at_once,
    inputs_now,
    predecessors,
    remember_inputs,
)

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

    def raise_first(self) -> None:
        """Raises the first failure that is not just the stop of the run."""
        for name, error in self.failures.items():
            if not is_stop(error):
                raise as_error(name, error)
        cancel.checkpoint()
        if self.failures:
            raise Interrupted


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
        told = isinstance(error, EtdeployError) and error.log is None
        if told and task.log.is_file() and task.log.stat().st_size:
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
    """The task whose failure kept a task from ending well; itself if that failed."""
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
