"""The passes of a program that generates text."""

from __future__ import annotations

from typing import Any

from etdeploy.bench.measure import plan_generation
from etdeploy.bench.sweep import Plan, ThreadCounts
from tests.support.text_values import make_expected, make_generation, make_loaded, make_work


def _plan(simulated: bool = False, texts: int = 0, **benchmark: Any) -> Plan:
    recipe = make_loaded(benchmark=benchmark).recipe
    work = make_work(generation=make_generation(expected=(make_expected(),) * texts))
    return plan_generation(recipe, work, ThreadCounts((3,)), simulated=simulated)


def test_starts_are_followed_by_the_memory_and_the_traces() -> None:
    steps = _plan(runs=2).steps
    assert [step.key for step in steps] == ["timing", "timing.2", "memory", "profile"]
    assert [step.request for step in steps] == [
        "generation/timing.txt", "generation/timing.txt", "generation/memory.txt",
        "generation/profile.txt",
    ]  # fmt: skip
    assert {(step.threads, step.outputs) for step in steps} == {(3, False)}
    # What is timed has no tracer.
    assert [step.etdump for step in steps] == [False, False, False, True]
    assert [step.watched for step in steps] == [False, False, True, False]


def test_what_is_not_wanted_is_left_out() -> None:
    assert [s.key for s in _plan(memory=False, profile=False, runs=1).steps] == ["timing"]
    assert [s.key for s in _plan(simulated=True).steps] == ["timing"]


def test_known_texts_have_a_pass_of_their_own() -> None:
    plan = _plan(texts=2, runs=1)
    assert [step.key for step in plan.steps] == ["timing", "text", "memory", "profile"]
    text = plan.steps[1]
    assert (text.request, text.warmup, text.iterations) == ("generation/text.txt", 0, 2)
    # Of a simulated run, the outputs are all that counts.
    assert [s.key for s in _plan(simulated=True, texts=1).steps] == ["timing", "text"]
