"""Attention without the check for rows that are masked wholly.

PyTorch's softmax of attention gives zeros for a row of scores that is -inf throughout, where a
plain one gives nan. To find such rows, the decomposition looks at every score: eq, any,
logical_not, where and full_like on kernels outside of XNNPACK, over tokens squared. That was 57 %
of the time of Whisper-tiny's encoder, and 39 % of ViT-tiny's.

A row is masked wholly by the mask alone. So without a mask there is nothing to check; with one that
is constant, it is looked at here; and with any other, the mask is looked at while the program runs,
which has no heads and mostly no queries. -inf becomes a finite number, as far below every score.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from etdeploy.export.worker.rewrites.base import Program, RewriteLog, Writer, bound
from etdeploy.export.worker.rewrites.constants import constant_of
from etdeploy.export.worker.tracing.structure import fixed_size

_aten = torch.ops.aten
# Half of the least: a score can be added to it, and it is still finite.
_LEAST = torch.finfo(torch.float32).min / 2


def plain_attention(program: Program, log: RewriteLog) -> None:
    """Replaces every scaled_dot_product_attention of 32-bit floats; in place."""
    for node in list(program.graph.nodes):
        if node.target is not _aten.scaled_dot_product_attention.default:
            continue
        if reason := _why_not(node):
            log.skipped(node, reason)
        else:
            _replace(program, node)
            log.applied()
    # A product is contiguous, where PyTorch's attention is not: a view of that may not be one now.
    for node in program.graph.nodes:
        if node.target is _aten.view.default:
            node.target = _aten.reshape.default
    program.graph.eliminate_dead_code()
    program.graph_module.recompile()


def _why_not(node: torch.fx.Node) -> str:
    given = bound(node)
    query, key = given["query"].meta["val"], given["key"].meta["val"]
    mask = given["attn_mask"].meta["val"] if given["attn_mask"] is not None else None
    if given["dropout_p"]:
        return (
            f"it drops values at random (dropout_p is {given['dropout_p']:g}): call the model's "
            "eval(), or pass dropout_p only if self.training"
        )
    if query.dtype != torch.float32 or (mask is not None and mask.dtype not in _MASKS):
        return "its tensors are no 32-bit floats"
    if given["is_causal"] and None in (fixed_size(query.shape[-2]), fixed_size(key.shape[-2])):
        return "is_causal with a dynamic number of tokens makes another mask for each number"
    if given["scale"] is None and fixed_size(query.shape[-1]) is None:
        return "its scale depends on a width that is dynamic"
    if given["enable_gqa"] and None in map(fixed_size, query.shape[:-2]):
        return "enable_gqa with a dynamic number of sequences"
    return ""


_MASKS = (torch.float32, torch.bool)


def _replace(program: Program, node: torch.fx.Node) -> None:
    write, given = Writer(program, node), bound(node)
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
    mask, rows = _mask(program, write, given)
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
    write.replace(made)


# What is added to the scores, and 0 for each row that is masked wholly; None for nothing.
_Masks = tuple[torch.fx.Node | None, torch.fx.Node | None]


def _mask(program: Program, write: Writer, given: dict[str, Any]) -> _Masks:
    if given["is_causal"]:
        rows, columns = (int(given[name].meta["val"].shape[-2]) for name in ("query", "key"))
        seen = torch.ones(rows, columns, dtype=torch.bool).tril()
        return _constant_mask(write, f"causal_{rows}_{columns}", seen)
    if (mask := given["attn_mask"]) is None:
        return None, None
    known = constant_of(program, mask)
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
