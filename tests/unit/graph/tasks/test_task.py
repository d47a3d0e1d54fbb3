"""The graph of several jobs: what is shared, in which order, and what it says of itself."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from etdeploy.core import console
from etdeploy.core.errors import ExportError
from etdeploy.graph.tasks.engine import Run, TaskRunResult, cause_of, run_tasks
from etdeploy.graph.tasks.steps import Slots, Step, tasks_of
from tests.support.jobs import Stage

Jobs = list[tuple[tuple[Step, ...], Path]]


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def run(stage: Stage, jobs: Jobs, keep_going: bool = True, heavy: int = 2) -> TaskRunResult:
    stage.ran.clear()
    tasks = tasks_of(jobs)
    goals = [task.name for task in tasks if task.step.name == "bench"]
    with console.TaskDisplay(quiet=True) as display:
        shared = Run(tasks, display, brief=True, slots=Slots(heavy))
        return run_tasks(tasks, goals, shared, keep_going=keep_going)


@pytest.mark.parametrize("known", [(False, False), (True, False), (False, True)])
def test_a_runner_that_only_a_program_tells_is_shared_too(
    stage: Stage, known: tuple[bool, bool]
) -> None:
    jobs = [stage.job("a", "p", known=known[0]), stage.job("b", "q", known=known[1])]
    ended = run(stage, jobs)
    assert not ended.failures
    assert sorted(stage.made) == ["export p", "export q", "runner r"]
    [(follower, leader)] = ended.followed.items()
    ran = [f"{name.replace('.0', ' a').replace('.1', ' b')}" for name in (leader, follower)]
    assert stage.ran.index(ran[0]) < stage.ran.index(ran[1])


@pytest.mark.parametrize("later", [["a"], ["b"], ["b", "a"], ["a", "b"]])
def test_which_jobs_were_run_together_does_not_matter(stage: Stage, later: list[str]) -> None:
    run(stage, [stage.job("a"), stage.job("b", known=False)])
    assert stage.ran
    run(stage, [stage.job(name) for name in later])
    assert stage.ran == []


def test_without_keep_going_nothing_new_starts(stage: Stage) -> None:
    stage.failing["export a"] = ExportError("no model")
    ended = run(stage, [stage.job("a"), stage.job("b", "q", "s")], keep_going=False, heavy=1)
    assert "bench.1" not in ended.done
    assert cause_of("bench.1", tasks_of([stage.job("a"), stage.job("b", "q", "s")]), ended) is None


@pytest.mark.parametrize(("device", "beside"), [("", False), ("phone", True)])
def test_only_what_has_its_own_cores_is_measured_beside_an_export(
    stage: Stage, device: str, beside: bool
) -> None:
    measured, seen = threading.Event(), []
    stage.during["export b"] = lambda: seen.append(measured.wait(30 if beside else 0.5))
    stage.during["bench a"] = measured.set
    run(stage, [stage.job("a", device=device), stage.job("b", "q", "s")])
    assert seen == [beside]


def test_two_jobs_never_measure_on_one_device_at_once(stage: Stage) -> None:
    under_way, most = [], []

    def measure() -> None:
        under_way.append(1)
        time.sleep(0.05)
        most.append(len(under_way))
        under_way.pop()

    names = "abcd"
    for name in names:
        stage.during[f"bench {name}"] = measure
    run(stage, [stage.job(name, name, name, device="phone") for name in names])
    assert most == [1] * 4
