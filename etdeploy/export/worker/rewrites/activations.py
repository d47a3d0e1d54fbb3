"""SiLU in two operators before quantisation.

XNNPACK's quantiser has no rule for SiLU, which stays in floats: values are dequantised before it
and quantised after it. Of x * sigmoid(x), the product is computed in 8 bits. Outputs also come
nearer to those of the floats.
"""

from __future__ import annotations

from typing import Any

import torch

from etdeploy.export.worker.rewrites.base import Program, RewriteLog, Writer, bound

_aten = torch.ops.aten


def silu_as_product(program: Program, log: RewriteLog) -> None:
    """Replaces every SiLU; in place."""
    order = {node: index for index, node in enumerate(program.graph.nodes)}
    for node in list(program.graph.nodes):
        if node.target not in (_aten.silu.default, _aten.silu_.default):
            continue
        x = node.args[0]
        in_place = node.target is _aten.silu_.default
        if in_place and not _is_its_own(x):
            log.skipped(node, "it changes a tensor in place that others may see")
            continue
        write = Writer(program, node)
        made = write(_aten.mul.Tensor, x, write(_aten.sigmoid.default, x))
        if in_place:  # those after it see what it made of its input
            for user in [u for u in x.users if order.get(u, -1) > order[node]]:
                user.replace_input_with(x, made)
        write.replace(made)
        log.applied()
    program.graph_module.recompile()


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


_IMAGE = 4


def prelu_as_relus(program: Program, log: RewriteLog) -> None:
    """Replaces every one of 32-bit floats that is of no image; in place."""
    for node in list(program.graph.nodes):
        if node.target is not _aten.prelu.default:
            continue
        given = bound(node)
        value = given["self"].meta["val"]
        if value.dim() == _IMAGE or value.dtype != torch.float32:
            continue
        write = Writer(program, node)
        write.replace(_by_relus(write, given["self"], given["weight"]))
        log.applied()
    program.graph_module.recompile()


def _by_relus(write: Writer, x: torch.fx.Node, weight: torch.fx.Node) -> torch.fx.Node:
    rank = x.meta["val"].dim()
    channels: Any = weight.meta["val"].numel()
    if rank > 1 and channels > 1:
        weight = write(_aten.reshape.default, weight, [channels] + [1] * (rank - 2))
    below = write(_aten.relu.default, write(_aten.neg.default, x))
    above = write(_aten.relu.default, x)
    return write(_aten.sub.Tensor, above, write(_aten.mul.Tensor, below, weight))
