"""Activations and softmax in the forms that XNNPACK computes.

XNNPACK's quantizer has no rule for SiLU, which stays in floats: values are dequantized before it
and quantized after it. Of x * sigmoid(x), the product is computed in 8 bits. Outputs also come
nearer to those of the floats. XNNPACK's partitioner takes a PReLU of images only, and a softmax
over the last dimension only.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from etdeploy.export.worker.rewrites.base import Program, RewriteLog, Writer, replace_nodes

_aten = torch.ops.aten
_IMAGE = 4
# Of the GELU with tanh, doubled: 2 sqrt(2 / pi) (x + 0.044715 x^3), from arXiv:1606.08415.
_LINEAR, _CUBIC = 2 * math.sqrt(2 / math.pi), 0.044715


def silu_as_product(program: Program, log: RewriteLog) -> None:
    """Replaces every SiLU by two operators before quantization; in place."""
    replace_nodes(program, log, {_aten.silu.default: _silu, _aten.silu_.default: _silu})


def _silu(write: Writer, given: dict[str, Any]) -> torch.fx.Node | str:
    node, x = write.node, given["self"]
    in_place = node.target is _aten.silu_.default
    if in_place and not _is_its_own(x):
        return "it changes a tensor in place that others may see"
    made = write(_aten.mul.Tensor, x, write(_aten.sigmoid.default, x))
    if in_place:  # those after it see what it made of its input
        for user in [user for user in x.users if user > node]:
            user.replace_input_with(x, made)
    return made


def _is_its_own(x: torch.fx.Node) -> bool:
    """Whether a node's tensor is new, and no other looks into it."""
    schema = getattr(x.target, "_schema", None)
    if x.op != "call_function" or schema is None:
        return False
    is_new = all(each.alias_info is None for each in schema.returns)
    return is_new and not any(_is_view(user) for user in x.users)


def _is_view(node: torch.fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    if schema is None or schema.is_mutable:
        return schema is None
    return any(each.alias_info is not None for each in schema.returns)


def exact_gelus(program: Program) -> None:
    """Writes out each GELU that is computed with tanh, as Gemma and SigLIP have it; in place.

    ExecuTorch 1.5.1 hands every GELU to XNNPACK without its `approximate` (operators/op_gelu.py),
    which computes the other one: values then differ by 5e-4.
    """
    for node in list(program.graph.nodes):
        if node.target is not _aten.gelu.default or node.kwargs.get("approximate") != "tanh":
            continue
        with program.graph.inserting_before(node):
            x = node.args[0]
            # (1 + tanh(z)) / 2 is sigmoid(2 z).
            square = _like(node, _aten.mul.Tensor, x, x)
            weighted = _like(node, _aten.mul.Tensor, square, _CUBIC * _LINEAR)
            linear = _like(node, _aten.add.Tensor, weighted, _LINEAR)
            gate = _like(node, _aten.sigmoid.default, _like(node, _aten.mul.Tensor, linear, x))
            node.replace_all_uses_with(_like(node, _aten.mul.Tensor, x, gate))
        program.graph.erase_node(node)
    program.graph_module.recompile()


def _like(node: torch.fx.Node, operator: Any, *args: Any) -> torch.fx.Node:
    made = node.graph.call_function(operator, args)
    made.meta = dict(node.meta)  # of the same shape and type, from the same line
    return made


def prelu_as_relus(program: Program, log: RewriteLog) -> None:
    """Replaces every one of 32-bit floats that is of no image; in place."""
    replace_nodes(program, log, {_aten.prelu.default: _prelu})


def _prelu(write: Writer, given: dict[str, Any]) -> torch.fx.Node | None:
    x, weight = given["self"], given["weight"]
    value, channels = x.meta["val"], weight.meta["val"].numel()
    rank = value.dim()
    if rank == _IMAGE or value.dtype != torch.float32:
        return None
    if rank > 1 and channels > 1:
        weight = write(_aten.reshape.default, weight, [channels] + [1] * (rank - 2))
    below = write(_aten.relu.default, write(_aten.neg.default, x))
    above = write(_aten.relu.default, x)
    return write(_aten.sub.Tensor, above, write(_aten.mul.Tensor, below, weight))


def softmax_last(program: Program, log: RewriteLog) -> None:
    """Exchanges the dimension of a softmax with the last one, and back; in place."""
    replace_nodes(program, log, {_aten.softmax.int: _softmax})


def _softmax(write: Writer, given: dict[str, Any]) -> torch.fx.Node | str | None:
    x, dim = given["self"], given["dim"]
    values = x.meta["val"]
    if values.dim() == 0 or dim % values.dim() == values.dim() - 1:
        return None
    if given["dtype"] not in (None, torch.float32) or values.dtype != torch.float32:
        return "its tensors are not 32-bit floats"
    turned = write(_aten.softmax.int, write(_aten.transpose.int, x, dim, -1), -1)
    return write(_aten.transpose.int, turned, dim, -1)
