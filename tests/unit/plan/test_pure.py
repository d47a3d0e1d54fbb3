"""Deriving a plan asks neither the machine nor the clock, so it is the same everywhere."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping

import pytest

from etdeploy.backends.registry import exporting_backends
from etdeploy.plan.model import RuntimePlan
from etdeploy.program.model import Program
from etdeploy.targets.platforms import TARGETS
from tests.support.audit import touched
from tests.support.runtime_values import make_method, make_plan, make_program, make_recipe

_PROGRAM = make_program(
    make_method(
        operators=("aten::relu.out", "quantized_decomposed::add.out"),
        delegates=("XnnpackBackend", "QnnBackend", "VulkanBackend"),
    )
)


class _NoEnvironment(Mapping[str, str]):
    """The environment of a process, which nobody may look at."""

    def __getitem__(self, name: str) -> str:
        raise AssertionError(f"a plan asked for the variable {name}")

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("a plan looked at the environment")

    def __len__(self) -> int:
        raise AssertionError("a plan looked at the environment")


def _no_clock(clock: Callable[[], float]) -> Callable[[], float]:
    """A clock for other threads only."""
    planning = threading.get_ident()

    def told() -> float:
        if threading.get_ident() == planning:
            raise AssertionError("a plan asked what time it is")
        return clock()

    return told


def _plans(program: Program | None) -> Iterator[RuntimePlan]:
    for backend in exporting_backends():
        for provider in ("auto", "wheel", "source"):
            recipe = make_recipe(export={"backend": backend}, runtime={"provider": provider})
            for target in TARGETS:
                yield make_plan(recipe, program, target)


@pytest.mark.parametrize("program", [None, _PROGRAM], ids=["recipe", "program"])
def test_no_plan_touches_the_machine(
    program: Program | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = [plan.model_dump() for plan in _plans(program)]  # whatever is imported, is now
    with monkeypatch.context() as patch:
        patch.setattr(os, "environ", _NoEnvironment())
        for clock in ("time", "monotonic", "perf_counter"):
            patch.setattr(time, clock, _no_clock(getattr(time, clock)))
        with touched() as seen:
            again = list(_plans(program))
    assert seen == []
    assert [plan.model_dump() for plan in again] == before
