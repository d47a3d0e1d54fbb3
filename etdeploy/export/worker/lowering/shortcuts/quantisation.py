"""Shapes of what the quantisation's operators give, known at once.

ExecuTorch lowers in some 40 steps, and most run the whole graph again with fake tensors. What the
quantisation's operators give is therefore computed so often that it was a third of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode

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
