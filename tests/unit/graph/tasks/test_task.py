"""The graph of several jobs: what is shared, in which order, and what it says of itself."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from etdeploy.core import console
from etdeploy.core.errors import BuildError, ExportError
from etdeploy.graph.tasks.engine import Run, TaskRunResult, cause_of, run_tasks
from etdeploy.graph.tasks.steps import Slots, Step, statuses, tasks_of
from tests.support.jobs import NAMES, Stage

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


def test_the_first_of_those_that_need_the_same_leads(stage: Stage) -> None:
    tasks = {t.name: t for t in tasks_of([stage.job("a"), stage.job("b"), stage.job("c", "other")])}
    assert tasks["export.1"].leader == "export.0"
    assert tasks["export.2"].leader is None
    assert [tasks[f"runner.{i}"].leader for i in range(3)] == [None, "runner.0", "runner.0"]
    assert tasks["plan.1"].leader is None, "what each job has for itself is not shared"


def test_shared_work_comes_first_for_its_leader(stage: Stage) -> None:
    run(stage, [stage.job("a"), stage.job("b")])
    assert stage.made == ["export p", "runner r"]
    assert stage.ran.index("export a") < stage.ran.index("export b")
    assert stage.ran.index("runner a") < stage.ran.index("runner b")


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


def test_a_failure_stops_only_what_needs_it(stage: Stage) -> None:
    stage.failing["plan a"] = BuildError("no plan")
    ended = run(stage, [stage.job("a", "p", "r"), stage.job("b", "q", "s")])
    assert list(ended.failures) == ["plan.0"]
    assert "bench.1" in ended.done
    assert "bench.0" not in ended.done


def test_a_failed_export_is_the_cause_for_all_that_share_it(stage: Stage) -> None:
    stage.failing["export a"] = ExportError("no model")
    jobs = [stage.job("a"), stage.job("b"), stage.job("c", "other", "s")]
    ended = run(stage, jobs)
    tasks = tasks_of(jobs)
    assert [cause_of(f"bench.{i}", tasks, ended) for i in range(3)] == ["export.0"] * 2 + [None]
    assert list(ended.failures) == ["export.0"], "it is not tried again for b"


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


def test_statuses_follow_each_job(stage: Stage) -> None:
    run(stage, [stage.job("a")])
    tasks = tasks_of([stage.job("a"), stage.job("b")])
    would = {s.task.name: s.would_run for s in statuses(tasks, ("bench.0", "bench.1"))}
    assert [would[f"{name}.0"] for name in NAMES] == [False] * 4
    assert [would[f"{name}.1"] for name in NAMES] == [True] * 4
