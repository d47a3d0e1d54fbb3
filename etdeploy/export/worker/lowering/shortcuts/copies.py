"""Copies of programs, without what nobody changes."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import executorch.exir.backend.backend_details as backend_details
import executorch.exir.program._program as program
import torch
from torch.fx.traceback import NodeSource


@contextmanager
def origins_shared() -> Iterator[None]:
    """Where a node came from is kept in values that nobody changes, and that every step copied."""
    NodeSource.__deepcopy__ = lambda self, _: self
    try:
        yield
    finally:
        del NodeSource.__deepcopy__


@contextmanager
def tensors_shared() -> Iterator[None]:
    """The copies of programs for the ETRecord and for each partition have no tensors of their own.

    Weights and caches would be in memory three times. No step writes into a tensor.
    """
    modules = (program, backend_details)
    for module in modules:
        module.copy = SimpleNamespace(copy=copy.copy, deepcopy=_copied)
    try:
        yield
    finally:
        for module in modules:
            module.copy = copy


def _copied(value: Any, memo: dict[int, Any] | None = None) -> Any:
    known = {id(tensor): tensor for tensor in _tensors(value)}
    return copy.deepcopy(value, known if memo is None else memo)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, program.EdgeProgramManager):
        for name in value.methods:
            yield from _tensors(value.exported_program(name))
    elif isinstance(value, torch.export.ExportedProgram):
        stored = (*value.state_dict.values(), *value.constants.values())
        yield from (each for each in stored if isinstance(each, torch.Tensor))
