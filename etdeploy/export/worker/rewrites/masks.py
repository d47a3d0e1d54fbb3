"""What a mask hides, by arithmetic: `where` and `masked_fill` are no operators of XNNPACK.

Such a mask is mostly known at export, or smaller than what it hides: hand-written attention has
one for all heads. A product with 0 and 1 and a sum give the same values for finite ones; so what is
hidden has to be finite, which the graph has to show, and -inf is only ever added.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from etdeploy.export.worker.rewrites.base import Program, RewriteLog, Writer, bound
from etdeploy.export.worker.rewrites.constants import constant_of
from etdeploy.export.worker.tracing.structure import fixed_sizes

_aten = torch.ops.aten
_WHERES = (_aten.where.self, _aten.where.ScalarOther, _aten.where.ScalarSelf)
_FILLS = (_aten.masked_fill.Scalar, _aten.masked_fill.Tensor)


@dataclass(frozen=True)
class _Hidden:
    """A tensor of which a mask hides a part.

    Attributes:
        mask: Of booleans.
        hides: What the mask is where the value is hidden.
        x: What shows elsewhere.
        fill: What stands for it, the same everywhere.
    """

    mask: torch.fx.Node
    hides: bool
    x: torch.fx.Node
    fill: float


def masks_as_products(program: Program, log: RewriteLog) -> None:
    """Replaces those of 32-bit floats whose mask is constant or smaller; in place."""
    for node in list(program.graph.nodes):
        if node.target not in (*_WHERES, *_FILLS):
            continue
        hidden = _hidden(program, node)
        if hidden is None or node.meta["val"].dtype != torch.float32:
            continue
        mask = constant_of(program, hidden.mask)
        if mask is None and not _is_smaller(hidden.mask, node):
            continue
        if not is_finite(program, hidden.x) or math.isnan(hidden.fill) or hidden.fill == math.inf:
            log.skipped(node, "what it hides may be infinite, so that a product would give nan")
            continue
        write = Writer(program, node)
        made = _computed(write, hidden) if mask is None else _constant(write, hidden, mask)
        if made.meta["val"].shape != node.meta["val"].shape:
            made = write(_aten.expand.default, made, list(node.meta["val"].shape))
        write.replace(made)
        log.applied()
    program.graph.eliminate_dead_code()
    program.graph_module.recompile()


def _hidden(program: Program, node: torch.fx.Node) -> _Hidden | None:
    """None where neither side is one number."""
    given = bound(node)
    if node.target in _FILLS:
        fill = _number(program, given["value"])
        return None if fill is None else _Hidden(given["mask"], True, given["self"], fill)
    for hides, x, filling in ((False, "self", "other"), (True, "other", "self")):
        fill, shown = _number(program, given[filling]), given[x]
        if fill is not None and _is_float32(shown):
            return _Hidden(given["condition"], hides, shown, fill)
    return None


def _is_float32(given: Any) -> bool:
    return isinstance(given, torch.fx.Node) and given.meta["val"].dtype == torch.float32


def _number(program: Program, given: Any) -> float | None:
    """What a side always is, for one that is the same everywhere."""
    if not isinstance(given, torch.fx.Node):
        return float(given)
    value = constant_of(program, given)
    if value is None or not value.numel() or value.dtype == torch.bool:
        return None
    first = value.detach().flatten()[0]
    return float(first) if bool((value == first).all()) else None


def _is_smaller(mask: torch.fx.Node, node: torch.fx.Node) -> bool:
    """Whether it is worth to make floats of the mask first."""
    sizes, of_mask = fixed_sizes(node.meta["val"].shape), fixed_sizes(mask.meta["val"].shape)
    is_known = None not in sizes and None not in of_mask
    return is_known and 2 * math.prod(of_mask) <= math.prod(sizes)


def _constant(write: Writer, hidden: _Hidden, mask: torch.Tensor) -> torch.fx.Node:
    hides = mask == hidden.hides
    if not hides.any():
        return hidden.x
    name = f"{hidden.mask.name}_{hidden.hides}_{hidden.fill!r}"
    added = torch.zeros(mask.shape).masked_fill(hides, hidden.fill)
    x = hidden.x
    if math.isfinite(hidden.fill):
        x = write(_aten.mul.Tensor, x, write.constant(f"shown_{name}", (~hides).float()))
    if not added.any():
        return x
    return write(_aten.add.Tensor, x, write.constant(f"added_{name}", added))


def _computed(write: Writer, hidden: _Hidden) -> torch.fx.Node:
    hides, shows = hidden.mask, write(_aten.logical_not.default, hidden.mask)
    if not hidden.hides:
        hides, shows = shows, hides
    hides_as_floats = write(_aten._to_copy.default, hides, dtype=torch.float32)
    if not math.isfinite(hidden.fill):
        zeros = write(_aten.mul.Tensor, hides_as_floats, 0.0)
        added = write(_aten.masked_fill.Scalar, zeros, hides, hidden.fill)
        return write(_aten.add.Tensor, hidden.x, added)
    shows_as_floats = write(_aten._to_copy.default, shows, dtype=torch.float32)
    x = write(_aten.mul.Tensor, hidden.x, shows_as_floats)
    if not hidden.fill:
        return x
    return write(_aten.add.Tensor, x, write(_aten.mul.Tensor, hides_as_floats, hidden.fill))


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
