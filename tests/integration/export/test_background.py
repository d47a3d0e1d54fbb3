"""Computations in forks of a process."""

from __future__ import annotations

import os
import signal
import sys
import time

import pytest
import torch

from etdeploy.export.worker.background import (
    BackgroundLostError,
    ForkedComputation,
    use_idle_threads,
)
from etdeploy.export.worker.failures import WorkerError, fail

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(sys.platform != "linux", reason="forks only on Linux"),
]


def test_a_fork_computes_with_what_was_there_when_it_began() -> None:
    weight = torch.ones(300, 300)
    (weight @ weight).sum()  # starts threads of this process, which a fork does not have
    product = ForkedComputation(lambda: weight @ weight)
    weight.zero_()
    assert torch.equal(product.result(), torch.full((300, 300), 300.0))
    assert not (weight @ weight).any()  # with threads again


def test_a_later_fork_takes_the_result_of_an_earlier_one() -> None:
    first = ForkedComputation(lambda: os.getpid())
    found = ForkedComputation(lambda: (first.result(), os.getpid())).result()
    assert len({os.getpid(), *found}) == 3


def test_a_fork_takes_the_thread_of_a_process_that_waits_for_it() -> None:
    own = torch.get_num_threads()

    def compute() -> tuple[int, int]:
        before = torch.get_num_threads()
        while torch.get_num_threads() == before:
            use_idle_threads()
            time.sleep(0.01)
        use_idle_threads()
        return before, torch.get_num_threads()

    torch.set_num_threads(3)
    try:
        assert ForkedComputation(compute).result() == (2, 3)
    finally:
        torch.set_num_threads(own)


def test_a_failure_is_that_of_the_computation() -> None:
    def compute() -> None:
        raise fail("outputs", "no text", remedy="Ask for one.", file="recipe.yaml:3:4")

    with pytest.raises(WorkerError, match="no text") as raised:
        ForkedComputation(compute).result()
    assert raised.value.failure.remedy == "Ask for one."
    with pytest.raises(WorkerError, match="ran out of memory") as raised:
        ForkedComputation(lambda: torch.empty(1 << 50)).result()
    assert raised.value.failure.kind == "memory"


def test_a_fork_that_the_system_ends_is_lost_for_later_ones_too() -> None:
    lost = ForkedComputation(lambda: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(BackgroundLostError):
        ForkedComputation(lost.result).result()
