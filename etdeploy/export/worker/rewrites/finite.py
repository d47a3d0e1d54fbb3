"""Whether a graph shows that a value is finite."""

from __future__ import annotations

import math
from typing import Any

import torch

from etdeploy.export.worker.rewrites.base import Program, bound
from etdeploy.export.worker.rewrites.constants import constant_of

_aten = torch.ops.aten
# What their weights and activations give is finite in a model that works.
_PRODUCTS = {
    _aten.linear.default, _aten.matmul.default, _aten.bmm.default, _aten.mm.default,
    _aten.addmm.default, _aten.baddbmm.default, _aten.conv1d.default, _aten.conv2d.default,
    _aten.conv3d.default, _aten.layer_norm.default, _aten.group_norm.default,
    _aten.softmax.int, _aten.sigmoid.default, _aten.tanh.default, _aten.embedding.default,
}  # fmt: skip
# Finite where all that they take is.
_KEEPING = {
    _aten.add.Tensor, _aten.sub.Tensor, _aten.mul.Tensor, _aten.neg.default, _aten.relu.default,
    _aten.gelu.default, _aten.silu.default, _aten.clone.default, _aten.contiguous.default,
    _aten.dropout.default, _aten.view.default, _aten.reshape.default, _aten.permute.default,
    _aten.transpose.int, _aten.unsqueeze.default, _aten.squeeze.dim, _aten.squeeze.dims,
    _aten.expand.default, _aten.slice.Tensor, _aten.select.int, _aten.cat.default,
    _aten.gather.default, _aten.add.Scalar, _aten.sub.Scalar, _aten.mul.Scalar,
    _aten.masked_fill.Scalar, _aten.where.self, _aten.where.ScalarOther, _aten.where.ScalarSelf,
    _aten.repeat.default, _aten.index.Tensor, _aten.alias.default,
}  # fmt: skip
_DIVISIONS = {_aten.div.Tensor, _aten.div.Scalar}


def is_finite(program: Program, node: torch.fx.Node) -> bool:
    """Whether each value is, as far as operators and constants tell; an input's may be anything."""
    above, seen = [node], set[torch.fx.Node]()
    while above:
        each = above.pop()
        if each in seen or each.target in _PRODUCTS or not _may_be_infinite(each):
            continue
        seen.add(each)
        value = constant_of(program, each)
        if value is not None:
            if not bool(torch.isfinite(value).all()):
                return False
            continue
        if each.target in _DIVISIONS and not _is_divisor(program, bound(each)["other"]):
            return False
        if each.target not in _KEEPING | _DIVISIONS or not _are_finite(each.args):
            return False
        above += each.all_input_nodes
    return True


def _may_be_infinite(node: torch.fx.Node) -> bool:
    """Unless it holds whole numbers or booleans."""
    value = node.meta.get("val")
    return not isinstance(value, torch.Tensor) or value.is_floating_point()


def _are_finite(args: Any) -> bool:
    return all(math.isfinite(each) for each in args if isinstance(each, float))


def _is_divisor(program: Program, given: Any) -> bool:
    """Whether it is a constant that is nowhere zero."""
    if not isinstance(given, torch.fx.Node):
        return bool(given)
    value = constant_of(program, given)
    return value is not None and bool((value != 0).all())
