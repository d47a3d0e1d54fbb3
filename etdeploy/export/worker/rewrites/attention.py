"""Attention without the check for rows that are masked wholly, and masks by arithmetic.

PyTorch's softmax of attention gives zeros for a row of scores that is -inf throughout, where a
plain one gives nan. To find such rows, the decomposition looks at every score: eq, any,
logical_not, where and full_like on kernels outside of XNNPACK, over tokens squared. That was 57 %
of the time of Whisper-tiny's encoder, and 39 % of ViT-tiny's.

A row is masked wholly by the mask alone. So without a mask there is nothing to check; with one that
is constant, it is looked at here; and with any other, the mask is looked at while the program runs,
which has no heads and mostly no queries. -inf becomes a finite number, as far below every score.

`where` and `masked_fill` are not operators of XNNPACK. Their masks are mostly known at export, or
smaller than what they hide: hand-written attention has one for all heads. A product with 0 and 1
and a sum give the same values for finite ones; so what is hidden has to be finite, which the graph
has to show, and -inf is only ever added.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from etdeploy.export.worker.rewrites.base import Program, RewriteLog, Writer, bound, replace_nodes
from etdeploy.export.worker.rewrites.constants import constant_of
from etdeploy.export.worker.tracing.structure import fixed_size, fixed_sizes

_aten = torch.ops.aten
# Half of the least: a score can be added to it, and it is still finite.
_LEAST = torch.finfo(torch.float32).min / 2


def plain_attention(program: Program, log: RewriteLog) -> None:
    """Replaces every scaled_dot_product_attention of 32-bit floats; in place."""
    replace_nodes(program, log, {_aten.scaled_dot_product_attention.default: _attention})
    # A product is contiguous, where PyTorch's attention is not: a view of that may not be one now.
    for node in program.graph.nodes:
        if node.target is _aten.view.default:
            node.target = _aten.reshape.default
    program.graph_module.recompile()


def _why_not(given: dict[str, Any]) -> str:
    query, key = given["query"].meta["val"], given["key"].meta["val"]
    mask = given["attn_mask"].meta["val"] if given["attn_mask"] is not None else None
    if given["dropout_p"]:
        return (
            f"it drops values at random (dropout_p is {given['dropout_p']:g}): call the model's "
            "eval(), or pass dropout_p only if self.training"
        )
    if query.dtype != torch.float32 or (mask is not None and mask.dtype not in _MASKS):
        return "its tensors are not 32-bit floats"
    if given["is_causal"] and None in (fixed_size(query.shape[-2]), fixed_size(key.shape[-2])):
        return "is_causal with a dynamic number of tokens makes another mask for each number"
    if given["scale"] is None and fixed_size(query.shape[-1]) is None:
        return "its scale depends on a width that is dynamic"
    if given["enable_gqa"] and None in map(fixed_size, query.shape[:-2]):
        return "enable_gqa with a dynamic number of sequences"
    return ""


_MASKS = (torch.float32, torch.bool)


def _attention(write: Writer, given: dict[str, Any]) -> torch.fx.Node | str:
    if reason := _why_not(given):
        return reason
    query, key, value = given["query"], given["key"], given["value"]
    size = query.meta["val"].shape[-1]
    scale = given["scale"] if given["scale"] is not None else 1 / math.sqrt(int(size))
    scaled = write(_aten.mul.Tensor, query, float(scale))
    shape = list(query.meta["val"].shape[:-2])
    heads = key.meta["val"].shape[-3] if given["enable_gqa"] else None
    if heads is not None:
        # The queries that share a head's keys become queries of that head.
        scaled = write(_aten.reshape.default, scaled, [*shape[:-1], heads, -1, size])
    scores = write(_aten.matmul.default, scaled, write(_aten.transpose.int, key, -2, -1))
    if heads is not None:
        scores = write(_aten.reshape.default, scores, [*shape, -1, scores.meta["val"].shape[-1]])
    mask, rows = _mask(write, given)
    if mask is not None:
        scores = write(_aten.add.Tensor, scores, mask)
    weights = write(_aten.softmax.int, scores, -1)
    if rows is not None:
        weights = write(_aten.mul.Tensor, weights, rows)
    if heads is not None:
        tokens = weights.meta["val"].shape[-1]
        weights = write(_aten.reshape.default, weights, [*shape[:-1], heads, -1, tokens])
    made = write(_aten.matmul.default, weights, value)
    if heads is not None:
        width = value.meta["val"].shape[-1]
        made = write(_aten.reshape.default, made, [*shape, -1, width])
    return made


# What is added to the scores, and 0 for each row that is masked wholly; None for nothing.
_Masks = tuple[torch.fx.Node | None, torch.fx.Node | None]


def _mask(write: Writer, given: dict[str, Any]) -> _Masks:
    if given["is_causal"]:
        rows, columns = (int(given[name].meta["val"].shape[-2]) for name in ("query", "key"))
        seen = torch.ones(rows, columns, dtype=torch.bool).tril()
        return _constant_mask(write, f"causal_{rows}_{columns}", seen)
    if (mask := given["attn_mask"]) is None:
        return None, None
    known = constant_of(write.program, mask)
    if known is not None:
        return _constant_mask(write, f"mask_{mask.name}", known)
    return _computed_mask(write, mask)


def _constant_mask(write: Writer, name: str, mask: torch.Tensor) -> _Masks:
    floats = mask
    if mask.dtype == torch.bool:
        floats = torch.zeros(mask.shape).masked_fill(~mask, float("-inf"))
    rows = (floats != float("-inf")).any(-1, keepdim=True)
    kept = None if rows.all() else write.constant(f"{name}_rows", rows.to(torch.float32))
    if not floats.any():
        return None, kept
    return write.constant(name, floats.clamp(min=_LEAST)), kept


def _computed_mask(write: Writer, mask: torch.fx.Node) -> _Masks:
    """Of a mask that only the running program knows."""
    if mask.meta["val"].dtype == torch.bool:
        hidden = write(_aten.logical_not.default, mask)
        floats = write(_aten._to_copy.default, hidden, dtype=torch.float32)
        added = write(_aten.mul.Tensor, floats, _LEAST)
        seen = mask
    else:
        added = write(_aten.clamp.default, mask, _LEAST)
        seen = write(_aten.ne.Scalar, mask, float("-inf"))
    rows = write(_aten.any.dim, seen, -1, True)
    return added, write(_aten._to_copy.default, rows, dtype=torch.float32)


_WHERES = (_aten.where.self, _aten.where.ScalarOther, _aten.where.ScalarSelf)
_FILLS = (_aten.masked_fill.Scalar, _aten.masked_fill.Tensor)


@dataclass(frozen=True)
class _Hidden:
    """A tensor `x`, with one number where a mask hides it: where the mask is `hides`."""

    mask: torch.fx.Node
    hides: bool
    x: torch.fx.Node
    fill: float


def masks_as_products(program: Program, log: RewriteLog) -> None:
    """Replaces those of 32-bit floats whose mask is constant or smaller; in place."""
    replace_nodes(program, log, dict.fromkeys((*_WHERES, *_FILLS), _masked))


def _masked(write: Writer, given: dict[str, Any]) -> torch.fx.Node | str | None:
    program, value = write.program, write.node.meta["val"]
    hidden = _hidden(write, given)
    if hidden is None or value.dtype != torch.float32:
        return None
    mask = constant_of(program, hidden.mask)
    if mask is None and not _is_smaller(hidden.mask, write.node):
        return None
    if not is_finite(program, hidden.x) or math.isnan(hidden.fill) or hidden.fill == math.inf:
        return "what it hides may be infinite, so that a product would give nan"
    made = _hide(write, hidden) if mask is None else _hide_known(write, hidden, mask)
    if made.meta["val"].shape != value.shape:
        made = write(_aten.expand.default, made, list(value.shape))
    return made


def _hidden(write: Writer, given: dict[str, Any]) -> _Hidden | None:
    """None where neither side is one number."""
    program = write.program
    if write.node.target in _FILLS:
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


def _hide_known(write: Writer, hidden: _Hidden, mask: torch.Tensor) -> torch.fx.Node:
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


def _hide(write: Writer, hidden: _Hidden) -> torch.fx.Node:
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
