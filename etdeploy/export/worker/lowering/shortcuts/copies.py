"""Copies of programs, without what nobody changes."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import executorch.exir.backend.backend_details as backend_details
import executorch.exir.program._program as program
import executorch.exir.verification.verifier as verifier
import torch
from torch.fx import GraphModule
from torch.fx.graph import _PyTreeCodeGen
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


@contextmanager
def dtypes_checked_once() -> Iterator[None]:
    """ExecuTorch runs each graph nine times to see whether types of tensors fit operators."""
    name, passed = "_check_tensor_args_matching_op_allowed_dtype", set[str]()
    check = getattr(verifier, name)

    def once(graph: torch.fx.GraphModule) -> None:
        text = "\n".join(_described(node) for node in graph.graph.nodes)
        if text not in passed:
            check(graph)
            passed.add(text)

    setattr(verifier, name, once)
    try:
        yield
    finally:
        setattr(verifier, name, check)


def _described(node: torch.fx.Node) -> str:
    value = node.meta.get("val") if node.op == "placeholder" else None
    dtype = getattr(value, "dtype", None)
    return f"{node.op} {node.name} {node.target} {node.args} {node.kwargs} {dtype}"


# What GraphModule.recompile makes of the graph, in the class that each of them has for itself or in
# the module.
_FORWARD = "forward"
_KEPT = ("_code", "_lineno_map", "_prologue_start")


@contextmanager
def code_when_wanted() -> Iterator[None]:
    """A module whose graph has changed is compiled when somebody calls it or reads its code.

    Each step of a lowering makes several modules, and torch compiles each at once.
    """
    recompile = GraphModule.recompile
    waiting = weakref.WeakSet[GraphModule]()

    def later(self: GraphModule) -> _Code:
        waiting.add(self)
        return _postponed(self, recompile)

    GraphModule.recompile = later
    try:
        yield
    finally:
        GraphModule.recompile = recompile
        for module in list(waiting):
            if isinstance(vars(type(module)).get(_FORWARD), _Later):
                recompile(module)


class _Later:
    """Stands in a module's class for what is made of the graph, and makes it when it is read."""

    def __init__(self, module: GraphModule, recompile: Callable[..., Any], name: str) -> None:
        self._module, self._recompile, self._name = weakref.ref(module), recompile, name

    def __get__(self, instance: Any, owner: type) -> Any:
        module = self._module()
        self._recompile(module)
        made = vars(owner if self._name == _FORWARD else module)[self._name]
        return made if instance is None or self._name != _FORWARD else made.__get__(instance, owner)


class _Code:
    """What `recompile` returns, for the few who read it."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make

    def __getattr__(self, name: str) -> Any:
        return getattr(self._make(), name)


def _postponed(module: GraphModule, recompile: Callable[..., Any]) -> _Code:
    if isinstance(module._graph._codegen, _PyTreeCodeGen):
        module._in_spec = module._graph._codegen.pytree_info.in_spec
        module._out_spec = module._graph._codegen.pytree_info.out_spec
    for name in _KEPT:
        vars(module).pop(name, None)
        setattr(type(module), name, _Later(module, recompile, name))
    type(module).forward = _Later(module, recompile, _FORWARD)
    module._recompile_submodules()
    return _Code(lambda: recompile(module))
