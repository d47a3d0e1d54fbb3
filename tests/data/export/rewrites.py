"""Models that meet a rewrite at fault: each patches the exporter that loads it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def _model() -> tuple[nn.Module, Any]:
    return nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)), (torch.randn(2, 8),)


def one_that_fails() -> tuple[nn.Module, Any]:
    """`norms` raises."""
    from etdeploy.export.worker.rewrites import order

    def fail(*_: Any) -> None:
        raise IndexError("no such dimension")

    patched: Any = order
    patched._LOWERED = {**patched._LOWERED, "norms": fail}
    return _model()


def one_that_does_not_load() -> tuple[nn.Module, Any]:
    """The first program does not load, the second does."""
    return _refused(loaded=False)


def one_that_does_not_run() -> tuple[nn.Module, Any]:
    """The first program loads and does not run, the second does."""
    return _refused(loaded=True)


def _refused(*, loaded: bool) -> tuple[nn.Module, Any]:
    from etdeploy.export.worker import pipeline
    from etdeploy.export.worker.lowering.lower_failures import ProgramProblem

    patched: Any = pipeline
    if not hasattr(patched, "answers"):  # this file is run again for the second program
        patched.answers = [ProgramProblem("invalid argument (error 0x12)", loaded)]
        patched.load_check = lambda *_: patched.answers.pop() if patched.answers else None
    return _model()
