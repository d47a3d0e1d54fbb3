"""The Python code of graphs, written when it is wanted: nearly none of it is ever run."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.fx import GraphModule
from torch.fx.graph import _PyTreeCodeGen

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
