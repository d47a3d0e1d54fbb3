"""State that methods keep between calls, such as a cache, and share with each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from etdeploy.export.worker.backends.base import Traced
from etdeploy.export.worker.failures import fail


@dataclass(frozen=True)
class State:
    """A buffer that a method writes to or reads.

    Attributes:
        method, name: Of the method, and of the buffer in its module.
        tensor: Before quantisation, which copies it: the same object in methods that share it.
        kept: Whether the lowered program has it outside of delegates.
        written: Whether the lowered program writes to it.
    """

    method: str
    name: str
    tensor: torch.Tensor
    kept: bool
    written: bool


def shared_state(methods: Mapping[str, Traced], edge: Any) -> tuple[str, ...]:
    """The names of the buffers that one method writes to, and that others have, too.

    ExecuTorch gives buffers of one name the same memory in every method
    (`MemoryPlanningPass(share_mutable_buffers=True)`), so names and tensors have to agree.

    Args:
        methods: What was lowered.
        edge: The lowered program.

    Raises:
        WorkerError: They do not agree, or a backend has taken what another method changes for a
            constant.
    """
    states = [state for name, of in methods.items() for state in _states(name, of, edge)]
    written = {id(state.tensor) for state in states if state.written}
    groups = [[s for s in states if id(s.tensor) == tensor] for tensor in written]
    shared = [group for group in groups if len({s.method for s in group}) > 1]
    for group in shared:
        _check_names(group)
        _check_kept(group)
    names = {group[0].name for group in shared}
    tensors = {id(group[0].tensor) for group in shared}
    # All buffers of a name get the same memory as soon as any are shared.
    for name in {s.name for s in states if s.written} if shared else ():
        _check_apart([s for s in states if s.name == name], tensors)
    return tuple(sorted(names))


def _states(method: str, of: Traced, edge: Any) -> Iterator[State]:
    signature = edge.exported_program(method).graph_signature
    kept, written = signature.inputs_to_buffers.values(), signature.buffers_to_mutate.values()
    used = set(of.program.graph_signature.inputs_to_buffers.values())
    for name, tensor in of.source.module.named_buffers(remove_duplicate=False):
        if name in used:
            yield State(method, name, tensor, name in kept, name in written)


def _check_names(group: Sequence[State]) -> None:
    names = {state.method: state.name for state in group}
    if len(set(names.values())) > 1:
        told = ", ".join(f"{name} in {method}" for method, name in names.items())
        raise fail(
            "outputs",
            f"methods share a state under different names, {told}; ExecuTorch shares it only "
            "under one",
            remedy="Let the modules of all methods hold the part with that state under one name.",
        )


def _check_kept(group: Sequence[State]) -> None:
    for state in group:
        if not state.kept:
            writer = next(s.method for s in group if s.written)
            raise fail(
                "lowering",
                f"the method {state.method} reads {state.name}, which {writer} changes, but the "
                "backend made it a constant there",
                remedy=f"Let {state.method} write it, too: self.{state.name}.add_(0); or\n"
                "--set export.backend=portable",
            )


def _check_apart(same_name: Sequence[State], shared: set[int]) -> None:
    tensors = {id(state.tensor) for state in same_name}
    if len(tensors) > 1:
        methods = ", ".join(dict.fromkeys(state.method for state in same_name))
        own = "one shares it" if tensors & shared else "other state is shared"
        raise fail(
            "outputs",
            f"the methods {methods} have different states of the name {same_name[0].name}, and "
            f"{own}; ExecuTorch would give them one memory",
            remedy="Rename one of the buffers.",
        )
