"""Linear layers with quantized weights, computed by etdeploy's kernels outside of the delegate.

`templates/runner/kernels/linear.h` has the kernels and the layouts of the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from etdeploy.export.worker.operators import register_operator
from etdeploy.export.worker.rewrites.base import RewriteLog

# Outputs and inputs that stand together, and inputs whose products fit 32 bits, see linear.h.
_OUTPUTS, _INPUTS, _MOST_INPUTS = 16, 32, 2**16
# Added to a weight of 4 bits, so that it is not negative.
_OFFSET = 8
_LEAST, _GREATEST = -128, 127


@contextmanager
def linears_in_kernel(modules: Iterable[torch.nn.Module], log: RewriteLog) -> Iterator[None]:
    """While the block runs, linear layers with quantized weights are calls of a kernel.

    Layers that no kernel takes stay: those whose outputs are not a multiple of 16, or whose inputs
    or groups are not multiples of 32.
    """
    taken: dict[int, KernelLinear] = {}
    changed: list[tuple[dict[str, Any], str, torch.nn.Module]] = []
    parents = {id(parent): parent for module in modules for parent in module.modules()}
    try:
        for parent in parents.values():
            for name, child in parent._modules.items():
                if isinstance(child, torch.nn.Linear) and _fits(child.weight):
                    changed.append((parent._modules, name, child))
                    if id(child) not in taken:
                        taken[id(child)] = KernelLinear(child)
                        log.applied()
        for children, name, child in changed:
            children[name] = taken[id(child)]
        yield
    finally:
        for children, name, child in changed:
            children[name] = child


class KernelLinear(torch.nn.Module):  # type: ignore[misc]
    """A linear layer as a call of an operator, with the values of a quantized one."""

    def __init__(self, layer: torch.nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        stored = _grouped if layer.weight.target_dtype == torch.int4 else _channelwise
        self.operator, weight, scales, sums = stored(layer.weight)
        none = torch.zeros(layer.out_features)
        self.weight, self.scales, self.sums = _constant(weight), _constant(scales), _constant(sums)
        self.bias = _constant(none if layer.bias is None else layer.bias.detach().float())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.operator(x, self.weight, self.scales, self.sums, self.bias)
        return out


_Stored = tuple[Callable[..., Any], torch.Tensor, torch.Tensor, torch.Tensor]


def _grouped(weight: Any) -> _Stored:
    """The operator of a weight in groups of 4 bits, and what it takes."""
    values, scales = weight.qdata, weight.scale.float().bfloat16()
    outputs = values.shape[0]
    groups = values.float().reshape(outputs, scales.shape[1], -1).sum(-1)
    sums = (groups * scales.float()).sum(-1)
    scales = scales.reshape(-1, _OUTPUTS, scales.shape[1]).transpose(1, 2)
    return GROUPED_LINEAR, _packed(values), scales, sums


def _channelwise(weight: Any) -> _Stored:
    """The operator of a weight in 8 bits, and what it takes."""
    values, scales = weight.qdata, weight.scale.float().flatten()
    return CHANNELWISE_LINEAR, values, scales, values.sum(-1, dtype=torch.int64).float() * scales


def _constant(values: torch.Tensor) -> torch.nn.Parameter:
    return torch.nn.Parameter(values.contiguous(), requires_grad=False)


def _fits(weight: Any) -> bool:
    """Whether a kernel takes a weight, and its activations are in 8 bits, as kernels round them."""
    rounded = getattr(weight, "activation_quantization", None)
    if rounded != "int8_asym_per_token" or weight.zero_point.any():
        return False
    outputs, inputs = weight.shape
    size = weight.block_size[-1]
    if outputs % _OUTPUTS or inputs % _INPUTS or weight.block_size[0] != 1:
        return False
    if weight.target_dtype == torch.int8:
        return bool(size == inputs <= _MOST_INPUTS)
    return bool(weight.target_dtype == torch.int4 and size % _INPUTS == 0)


def _packed(values: torch.Tensor) -> torch.Tensor:
    """Bytes of shape (outputs / 16, inputs / 32, 256) for weights of shape (outputs, inputs)."""
    outputs, inputs = values.shape
    # Blocks of outputs, an output; blocks of inputs, a run of 8, a half of it, an input.
    shape = (outputs // _OUTPUTS, _OUTPUTS, inputs // _INPUTS, 4, 2, 4)
    apart = (values + _OFFSET).to(torch.uint8).reshape(shape).permute(0, 2, 3, 1, 4, 5)
    both = apart[..., 0, :] | apart[..., 1, :] << 4
    return both.reshape(*both.shape[:2], -1)


def _unpacked(weight: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Weights in floats, of shape (outputs, inputs)."""
    blocks, runs = weight.shape[:2]
    both = weight.reshape(blocks, runs, 4, _OUTPUTS, 4)
    apart = torch.stack((both & 15, both >> 4), dim=-2).float() - _OFFSET
    values = apart.permute(0, 3, 1, 2, 4, 5).reshape(blocks * _OUTPUTS, scales.shape[1], -1)
    return (values * scales.transpose(1, 2).reshape(*values.shape[:2], 1).float()).flatten(1)


def _rounded(x: torch.Tensor) -> torch.Tensor:
    """Rows as what 8 bits have of them: 255 steps from the least number, or 0, to the greatest."""
    least, greatest = x.amin(-1, keepdim=True).clamp(max=0), x.amax(-1, keepdim=True).clamp(min=0)
    scale = ((greatest - least) / (_GREATEST - _LEAST)).clamp(min=torch.finfo(torch.float32).eps)
    zero = (_LEAST - (least / scale).round()).clamp(_LEAST, _GREATEST)
    return (((x * (1 / scale)).round() + zero).clamp(_LEAST, _GREATEST) - zero) * scale


def _operator(name: str, floats: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Any:
    """Registers an operator that computes with what `floats` makes of a weight and its scales."""

    def computed(x: torch.Tensor, weight: Any, scales: Any, _: Any, bias: Any) -> torch.Tensor:
        return torch.nn.functional.linear(_rounded(x), floats(weight, scales), bias)

    def shape(x: torch.Tensor, *operands: torch.Tensor) -> torch.Tensor:
        return x.new_empty((*x.shape[:-1], operands[-1].shape[0]))

    signature = "Tensor x, Tensor weight, Tensor scales, Tensor sums, Tensor bias"
    return register_operator(f"etdeploy::{name}", signature, computed, shape)


GROUPED_LINEAR = _operator("grouped_linear", _unpacked)
CHANNELWISE_LINEAR = _operator(
    "channelwise_linear", lambda weight, scales: weight.float() * scales.unsqueeze(1)
)
