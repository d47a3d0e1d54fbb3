"""Many jobs in one run: how each of them ends."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from etdeploy.cache.workspace import Workspace
from etdeploy.core import cancel, console
from etdeploy.core.errors import BuildError, ExportError, Interrupted
from etdeploy.graph import run as many
from etdeploy.graph.job import StepName
from etdeploy.graph.jobs import RecipeDevicePair
from etdeploy.graph.run import JobEnd, Ready, graph_of, run_jobs
from tests.support.jobs import Stage


class Jobs:
    """Played jobs, and how their run ended."""

    def __init__(self, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stage = stage
        self.ready: list[Ready] = []
        monkeypatch.setattr(many, "make_steps", lambda resolved, _exporter: resolved.steps)

    def add(self, name: str, *arguments: Any, **keys: Any) -> None:
        steps, state = self.stage.job(name, *arguments, **keys)
        member: Any = SimpleNamespace(pair=RecipeDevicePair(name, "host"))
        resolved: Any = SimpleNamespace(
            steps=steps,
            job=SimpleNamespace(state=state, workspace=Workspace(state)),
            exported=object(),
        )
        self.ready.append(Ready(member, resolved))

    def run(self, fail_fast: bool = False) -> dict[str, JobEnd]:
        self.stage.ran.clear()
        with console.TaskDisplay(quiet=True) as display:
            ends = run_jobs(self.ready, StepName.BENCH, display, heavy=2, fail_fast=fail_fast)
        return {end.member.pair.recipe: end for end in ends}


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Jobs:
    return Jobs(Stage(tmp_path), monkeypatch)


def test_the_failure_of_shared_work_is_told_once_and_referred_to(jobs: Jobs) -> None:
    for name, program in (("a", "p"), ("b", "p"), ("c", "q")):
        jobs.add(name, program)
    jobs.stage.failing["export a"] = error = ExportError("no model")
    ends = jobs.run()
    assert (ends["a"].error, ends["a"].same_as) == (error, None)
    assert (ends["b"].error, ends["b"].same_as) == (error, RecipeDevicePair("a", "host"))
    assert ends["c"].error is None
    assert error.log is not None
    assert error.log.read_text() == "tried\n"


def test_a_full_disk_is_told_as_one(jobs: Jobs) -> None:
    jobs.add("a")
    jobs.stage.failing["plan a"] = OSError(errno.ENOSPC, "No space left on device", "/cache/x")
    error = jobs.run()["a"].error
    assert isinstance(error, BuildError)
    assert "step plan" in str(error)


def test_who_only_waited_for_another_job_runs_without_it(jobs: Jobs) -> None:
    jobs.add("a", "p")
    jobs.add("b", "q")
    # It is the first to need the runner, and fails at something of its own before that.
    jobs.stage.failing["plan a"] = BuildError("no plan")
    ends = jobs.run()
    assert isinstance(ends["a"].error, BuildError)
    assert ends["b"].error is None
    assert sorted(jobs.stage.made) == ["export p", "export q", "runner r"]


def test_fail_fast_stops_the_others_and_not_the_program(jobs: Jobs) -> None:
    for name in "abc":
        jobs.add(name, name, name)
    jobs.stage.failing["export a"] = ExportError("no model")
    with cancel.trapped_signals():
        ends = jobs.run(fail_fast=True)
        cancel.checkpoint()
    assert isinstance(ends["a"].error, ExportError)
    assert [ends[name].stopped for name in "abc"] == [False, True, True]


def test_a_stop_from_outside_stops_all(jobs: Jobs) -> None:
    for name in "ab":
        jobs.add(name, name, name)
    with cancel.trapped_signals():
        jobs.stage.during["export a"] = cancel.current().set
        with pytest.raises(Interrupted):
            jobs.run()
    assert not [name for name in jobs.stage.ran if "bench" in name]


def test_tasks_say_whom_they_serve(jobs: Jobs) -> None:
    jobs.add("a", "p", "r")
    jobs.add("b", "p", "r", known=False)
    jobs.add("c", "q", "r")
    shown = {task.name: task.shown for task in graph_of(jobs.ready)}
    assert shown["export.0"] == "export a, b"
    assert shown["export.2"] == "export c"
    assert shown["runner.0"] == "runner a, c", "whether b needs it is known later"
    assert shown["runner.1"] == "runner b"
    assert shown["bench.2"] == "bench c"
