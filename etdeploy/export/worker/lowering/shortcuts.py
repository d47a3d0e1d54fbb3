"""Work that lowering repeats, done once or left out; the program stays the same, byte for byte.

ExecuTorch lowers in some 40 steps, and most run the whole graph again with fake tensors. What the
quantisation's operators give is therefore computed so often that it was a third of the time.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any

import executorch.exir.backend.backend_details as backend_details
import executorch.exir.program._program as program
import executorch.exir.verification.verifier as verifier
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.fx.traceback import NodeSource

_INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32)
_IMPLICIT = torch._C.DispatchKey.CompositeImplicitAutograd
_FUNCTIONAL = torch._C._TorchDispatchModeKey.FUNCTIONAL


@contextmanager
def shortcuts() -> Iterator[None]:
    """While the block runs, this process lowers without the repetitions."""
    with ExitStack() as stack:
        stack.enter_context(_shapes_of_quantisation())
        stack.enter_context(_dtypes_checked_once())
        stack.enter_context(_origins_shared())
        stack.enter_context(_tensors_shared())
        yield


# What an operator gives, of what it was given by the names of its schema; None where that is not
# known here.
_Gives = Callable[[Mapping[str, Any]], Any]


@contextmanager
def _shapes_of_quantisation() -> Iterator[None]:
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


@contextmanager
def _dtypes_checked_once() -> Iterator[None]:
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


@contextmanager
def _origins_shared() -> Iterator[None]:
    """Where a node came from is kept in values that nobody changes, and that every step copied."""
    NodeSource.__deepcopy__ = lambda self, _: self
    try:
        yield
    finally:
        del NodeSource.__deepcopy__


@contextmanager
def _tensors_shared() -> Iterator[None]:
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
