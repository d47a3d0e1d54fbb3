"""Which passes a recipe gives, with which arguments, and how ends of a runner are explained."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from etdeploy.bench.passes import Pass, Plan, plan_for_app, plan_passes
from etdeploy.bench.run_pass import app_options, run_pass, runner_arguments
from etdeploy.bench.threads import ThreadCounts
from etdeploy.core import cancel
from etdeploy.core.errors import Interrupted
from etdeploy.devices.base import RunOutcome
from tests.support.bench_values import make_recipe


def _ended(code: int | None, stderr: str = "", signal: str | None = None) -> RunOutcome:
    return RunOutcome(code, signal, "", stderr, 1.0, timed_out=code is None)


def test_every_pass_is_a_process_of_its_own() -> None:
    recipe = make_recipe(benchmark={"warmup": 20, "iterations": 100, "runs": 2})
    assert plan_passes(recipe) == Plan(
        starts=(
            (Pass("timing", 20, 100, outputs=True),),
            (Pass("timing", 20, 100, start=2),),
        ),
        rest=(Pass("memory", 0, 2, watched=True), Pass("profile", 5, 10, etdump=True)),
    )


def test_threads_are_swept_at_the_first_size_and_the_rest_comes_after() -> None:
    sizes = {"long": {"x.0": 9}, "short": {"x.0": 2}}
    recipe = make_recipe(benchmark={"sizes": sizes, "runs": 2, "memory": False})
    plan = plan_passes(recipe, threads=ThreadCounts((1, 4), swept=True))
    assert [[(p.key, p.size, p.threads) for p in start] for start in plan.starts] == [
        [("timing.threads-1", "long", 1), ("timing.threads-4", "long", 4)],
        [("timing.threads-1.2", "long", 1), ("timing.threads-4.2", "long", 4)],
    ]
    assert [p.outputs_folder for p in plan.starts[0] if p.outputs] == [
        "outputs.threads-1", "outputs.threads-4",
    ]  # fmt: skip
    assert [p.key for p in plan.rest] == ["timing-short", "timing-short.2", "profile"]
    given = runner_arguments(plan.rest[0])
    assert {"{bundle}/inputs-short.txt", "timing-short.json", "outputs-short"} <= set(given)
    assert plan_passes(recipe, threads=ThreadCounts((1, 4), swept=True), simulated=True).steps == (
        Pass("timing", 0, 1, outputs=True, size="long", threads=1),
        Pass("timing", 0, 1, outputs=True, size="short", further=True, threads=1),
    )


def test_arguments_of_the_timing_pass() -> None:
    step = plan_passes(make_recipe(), "decode", ThreadCounts((3,))).steps[0]
    assert runner_arguments(step) == (
        "--program", "{bundle}/program.pte",
        "--method", "decode",
        "--inputs", "{bundle}/inputs.txt",
        "--warmup", "auto",
        "--iterations", "50",
        "--threads", "3",
        "--results", "timing.json",
        "--outputs", "outputs",
        "--digest", "1",
    )  # fmt: skip


def test_a_runner_that_a_stop_ended_is_not_explained(tmp_path: Path) -> None:
    recipe = make_recipe()

    class Stopped:
        def run(self, arguments: Sequence[str], timeout_s: float) -> RunOutcome:
            assert arguments
            assert timeout_s
            cancel.request()
            return _ended(137, signal="SIGKILL")

        def pull(self, relative: str, to: Path) -> None:
            raise AssertionError(relative, to)

    with cancel.trapped_signals(), pytest.raises(Interrupted):
        run_pass(Stopped(), plan_passes(recipe).steps[0], recipe, "host", tmp_path)


def test_sustained_work_comes_last_at_the_first_size() -> None:
    sizes = {"long": {"x.0": 9}, "short": {"x.0": 2}}
    recipe = make_recipe(benchmark={"sizes": sizes, "sustained_s": 2.5})
    rest = plan_passes(recipe).rest
    watched = [p.key for p in rest if "--watch-memory" in runner_arguments(p)]
    assert watched == ["memory"]
    step = rest[-1]
    assert (step.key, step.size, step.sustained_s) == ("sustained", "long", 2.5)
    arguments = runner_arguments(step)
    given = dict(zip(arguments[::2], arguments[1::2], strict=True))
    assert (given["--sustained-ms"], given["--warmup"], given["--iterations"]) == ("2500", "0", "1")
    assert not plan_passes(recipe, simulated=True).rest
    shortest = plan_passes(make_recipe(benchmark={"sustained_s": 1e-9})).rest[-1]
    assert runner_arguments(shortest)[-2:] == ("--sustained-ms", "1")


def test_an_app_is_told_the_same_by_options() -> None:
    step = Pass("timing", warmup="auto", iterations=20, outputs=True, threads=4, size="long")
    assert app_options(step, ("app.apk", "program.pte")) == (
        "iterations=20",
        "warmup=-1",
        "threads=4",
        "size=long",
        "outputs=true",
        "program={bundle}/program.pte",
    )
    text = Pass("timing", warmup=1, iterations=3, request="generation/timing.txt")
    assert app_options(text, ("app.apk",)) == (
        "iterations=3",
        "warmup=1",
        "threads=0",
        "request={bundle}/generation/timing.txt",
    )


def test_an_app_leaves_traces_and_back_to_back_work_to_the_runner() -> None:
    plan = plan_passes(make_recipe(benchmark={"sustained_s": 5, "runs": 2}))
    shorter = plan_for_app(plan)
    assert shorter.starts == plan.starts
    assert [(step.name, step.watched) for step in shorter.rest] == [("memory", False)]
