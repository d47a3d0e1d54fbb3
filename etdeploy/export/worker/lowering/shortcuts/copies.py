"""Copies of programs, without what nobody changes."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import executorch.exir.backend.backend_details as backend_details
import executorch.exir.program._program as program
import executorch.exir.verification.verifier as verifier
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import get_proxy_mode
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


_INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32)
_IMPLICIT = torch._C.DispatchKey.CompositeImplicitAutograd
_FUNCTIONAL = torch._C._TorchDispatchModeKey.FUNCTIONAL

# What an operator gives, of what it was given by the names of its schema; None where that is not
# known here.
_Gives = Callable[[Mapping[str, Any]], Any]


@contextmanager
def shapes_of_quantisation() -> Iterator[None]:
    """The operators of torchao give their shapes at once; of fake tensors nothing else is asked.

    There are no fake kernels for them: each is run as the ten operators that it is made of, and
    of a dynamic length with symbolic arithmetic.
    """
    before = [(each, each._op, each._op_dk) for each in _affine_operators()]
    for operator, op, op_of_key in before:
        operator._op = _Shortened(operator, op)
        operator._op_dk = _shortened_of_key(operator, op_of_key)
    try:
        yield
    finally:
        for operator, op, op_of_key in before:
            operator._op, operator._op_dk = op, op_of_key


def _affine_operators() -> dict[Any, _Gives]:
    import torchao.quantization.quant_primitives  # noqa: F401 - it registers them

    operators = torch.ops.torchao
    return {
        operators.choose_qparams_affine.default: _chosen,
        operators.quantize_affine.default: _quantized,
        operators.dequantize_affine.default: _dequantized,
    }


class _Shortened:
    """Stands in for what an operator runs."""

    def __init__(self, operator: Any, op: Callable[..., Any]) -> None:
        self._operator, self._before = operator, op

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = _given(self._operator, args, kwargs)
        return self._before(*args, **kwargs) if given is None else given

    def __hash__(self) -> int:
        # An operator's hash is that of what it runs, and ExecuTorch has tables of operators that
        # outlive the block.
        return hash(self._before)


def _shortened_of_key(operator: Any, op: Callable[..., Any]) -> Callable[..., Any]:
    """The same for a call that names its dispatch key, as fake tensors make it of the parts."""

    def call(key: Any, *args: Any, **kwargs: Any) -> Any:
        given = _given(operator, args, kwargs) if key == _IMPLICIT else None
        return op(key, *args, **kwargs) if given is None else given

    return call


def _given(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Fake tensors; None where the operator has to be run."""
    # What is being traced would see what is run instead of the operator.
    if get_proxy_mode() is not None or torch._C._get_dispatch_mode(_FUNCTIONAL) is not None:
        return None
    names = (argument.name for argument in operator._schema.arguments)
    values = {**dict(zip(names, args, strict=False)), **kwargs}
    tensors = [value for value in values.values() if isinstance(value, torch.Tensor)]
    # The value of a constant is known, and computed with.
    fake = all(type(t) is FakeTensor and t.constant is None for t in tensors)
    tensor = values["input"]  # of a pattern that is being written down, a torch.fx.Proxy
    if not fake or not isinstance(tensor, FakeTensor) or not tensor.is_contiguous():
        return None
    return _affine_operators()[operator](values)


def _chosen(values: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor] | None:
    from torchao.quantization.quant_primitives import _get_reduction_params

    if values.get("keepdim") or values["mapping_type"] != "ASYMMETRIC":
        return None
    tensor = values["input"]
    sizes, reduced = _get_reduction_params(values["block_size"], tensor.size())
    kept = [size for index, size in enumerate(sizes) if index not in reduced]
    scale = tensor.new_empty(kept, dtype=values.get("scale_dtype") or tensor.dtype)
    return scale, tensor.new_empty(kept, dtype=values.get("zero_point_dtype") or torch.int32)


def _quantized(values: Mapping[str, Any]) -> torch.Tensor | None:
    dtype = values["output_dtype"]  # types of fewer bits are stored in another one
    return torch.empty_like(values["input"], dtype=dtype) if dtype in _INTEGERS else None


def _dequantized(values: Mapping[str, Any]) -> torch.Tensor | None:
    if values["input_dtype"] not in _INTEGERS:
        return None
    return torch.empty_like(values["input"], dtype=values.get("output_dtype") or torch.float32)
