"""What the steps of an export share: their times, progress, and processes beside them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import torch

from etdeploy.export.hf.memory import machine_memory, own_bytes
from etdeploy.export.worker.background import ForkedComputation, Starter, at_once, can_fork
from etdeploy.export.worker.failures import name_method
from etdeploy.export.worker.loading.source import MethodSource
from etdeploy.export.worker.lowering.rowwise import evaluated_bytes
from etdeploy.export.worker.lowering.weight_files import WeightFiles

Tell = Callable[[str, float], None]
Made = TypeVar("Made")


@dataclass
class Steps:
    """Times each step and reports the progress of the export.

    `files` takes weights that are larger than the memory; None where they have to be held. `forks`
    is whether the model may be run beside the process that traces and lowers it.
    """

    tell: Tell
    files: WeightFiles | None = None
    forks: bool = True
    seconds: dict[str, float] = field(default_factory=dict)
    _inner_s: list[float] = field(default_factory=lambda: [0.0])

    @contextmanager
    def step(self, name: str, text: str, fraction: float) -> Iterator[None]:
        """One step, which begins when `fraction` of the work is done.

        A step inside another one counts by itself.
        """
        self.tell(text, fraction)
        started = time.monotonic()
        self._inner_s.append(0.0)
        try:
            yield
        finally:
            took_s = time.monotonic() - started
            own_s = took_s - self._inner_s.pop()
            self._inner_s[-1] += took_s
            self.seconds[name] = round(self.seconds.get(name, 0.0) + own_s, 3)


def for_each(sources: Mapping[str, MethodSource], make: Callable[[str], Made]) -> dict[str, Made]:
    """What is made for each method, by its name; a failure says which it is about."""
    made = {}
    for name in sources:
        with name_method(name, sources):
            made[name] = make(name)
    return made


def import_executorch(steps: Steps) -> None:
    """Imports it in a step of its own: that takes seconds, which are not the model's."""
    if "executorch.exir" in sys.modules:
        return
    with steps.step("import", "importing ExecuTorch", 0.2):
        import executorch.exir  # noqa: F401


# What is needed beside the weights while they are evaluated and lowered.
_BESIDE_WEIGHTS_BYTES = 2 << 30


def starter(steps: Steps, model: torch.nn.Module) -> Starter:
    """Computes in a fork if what that takes, and the program, fit beside the weights."""
    needed = sum(map(evaluated_bytes, model.parameters()))
    free = machine_memory().free_bytes - own_bytes()
    if not (steps.forks and can_fork()) or needed + _BESIDE_WEIGHTS_BYTES > free:
        return at_once
    return lambda compute: ForkedComputation(compute).result
