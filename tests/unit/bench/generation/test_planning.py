"""The passes of a program that generates text."""

from __future__ import annotations

from typing import Any

from etdeploy.bench.generation.planning import plan_generation
from etdeploy.bench.timing.planning import Plan
from etdeploy.bench.timing.threads import Threads
from tests.support.text_values import make_loaded, make_work


def _plan(simulated: bool = False, **benchmark: Any) -> Plan:
    recipe = make_loaded(benchmark=benchmark).recipe
    return plan_generation(recipe, make_work(), Threads((3,)), simulated=simulated)


def test_starts_are_followed_by_the_memory() -> None:
    steps = _plan(runs=2).steps
    assert [step.key for step in steps] == ["timing", "timing.2", "memory"]
    assert [step.request for step in steps] == [
        "generation/timing.txt", "generation/timing.txt", "generation/memory.txt",
    ]  # fmt: skip
    assert {(step.threads, step.outputs, step.etdump) for step in steps} == {(3, False, False)}
    assert [step.watched for step in steps] == [False, False, True]


def test_what_is_not_wanted_is_left_out() -> None:
    assert [s.key for s in _plan(memory=False, runs=1).steps] == ["timing"]
    assert [s.key for s in _plan(simulated=True).steps] == ["timing"]
