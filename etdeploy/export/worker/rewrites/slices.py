"""Parts of tensors as slices; most after ExecuTorch has made a graph of its own operators.

XNNPACK's partitioner has a rule for slice_copy of neighbours, and none for select_copy and
split_with_sizes_copy.
"""

from __future__ import annotations

import operator
from typing import Any

import torch

from etdeploy.export.worker.rewrites.base import Program, RewriteLog, Writer, bound
from etdeploy.export.worker.tracing.structure import fixed_size, fixed_sizes

_aten = torch.ops.aten
# Of a tensor in XNNPACK (XNN_MAX_TENSOR_DIMS).
_RANK = 6
# A node each.
_MOST_FLIPPED = 64


def rolls_as_slices(program: Program, log: RewriteLog) -> None:
    """Replaces every roll of floats by its two parts, exchanged; in place.

    ExecuTorch's own form looks up each index.
    """
    for node in list(program.graph.nodes):
        if node.target is not _aten.roll.default:
            continue
        given = bound(node)
        shape = fixed_sizes(node.meta["val"].shape)
        if not given["dims"] or None in shape or not _is_taken(given["self"]):
            log.skipped(node, "dynamic shape or non-float32 tensor")
            continue
        write, made = Writer(program, node), given["self"]
        for shift, dim in zip(given["shifts"], given["dims"], strict=True):
            if first := -shift % shape[dim]:
                head = write(_aten.slice.Tensor, made, dim, 0, first)
                tail = write(_aten.slice.Tensor, made, dim, first, shape[dim])
                made = write(_aten.cat.default, [tail, head], dim)
        write.replace(made)
        log.applied()
    program.graph_module.recompile()


def parts_as_slices(program: Program, log: RewriteLog) -> None:
    """Replaces every select_copy, split and short flip of known sizes; in place."""
    from executorch.exir.dialects._ops import ops

    edge = ops.edge.aten
    for node in list(program.graph.nodes):
        if node.target is edge.select_copy.int:
            _select(edge, program, node, log)
        elif node.target is edge.split_with_sizes_copy.default:
            _split(edge, program, node, log)
        elif node.target is edge.slice_copy.Tensor:
            _stride(edge, program, node, log)
        elif node.target is edge.flip.default:
            _flip(edge, program, node, log)
    program.graph.eliminate_dead_code()
    program.graph_module.recompile()


def _select(edge: Any, program: Program, node: torch.fx.Node, log: RewriteLog) -> None:
    x, dim, index = _three(*node.args[:3])
    size = fixed_size(x.meta["val"].shape[dim])
    shape = fixed_sizes(node.meta["val"].shape)
    if size is None or not isinstance(index, int) or None in shape or not _is_taken(x):
        log.skipped(node, "dynamic shape or non-float32 tensor")
        return
    write, start = Writer(program, node), index % size
    part = write(edge.slice_copy.Tensor, x, dim, start, start + 1)
    write.replace(write(edge.view_copy.default, part, shape))
    log.applied()


def _split(edge: Any, program: Program, node: torch.fx.Node, log: RewriteLog) -> None:
    x, sizes, dim = _three(*node.args)
    fixed = fixed_sizes(sizes)
    if None in fixed or not _is_taken(x):
        log.skipped(node, "dynamic shape or non-float32 tensor")
        return
    starts = [sum(fixed[:i]) for i in range(len(fixed))]
    for user in list(node.users):
        if user.target is not operator.getitem:
            continue
        number: Any = user.args[1]
        start, size = starts[number], fixed[number]
        write = Writer(program, user)
        write.replace(write(edge.slice_copy.Tensor, x, dim, start, start + size))
    log.applied()


def _stride(edge: Any, program: Program, node: torch.fx.Node, log: RewriteLog) -> None:
    """Every n-th value: of a dimension that is divided into two, one place of the second."""
    given = bound(node)
    x, dim, step = given["self"], given["dim"], given["step"]
    if step == 1:
        return
    sizes = fixed_sizes(x.meta["val"].shape)
    shape = fixed_sizes(node.meta["val"].shape)
    start, dim = given["start"] or 0, dim % len(sizes)
    if None in sizes or not _is_taken(x) or not isinstance(start, int):
        log.skipped(node, "dynamic shape or non-float32 tensor")
        return
    size = sizes[dim]
    if size % step or not 0 <= start < step or shape[dim] != size // step or len(sizes) >= _RANK:
        log.skipped(
            node, "it takes no whole number of strides, or its tensor has too many dimensions"
        )
        return
    write = Writer(program, node)
    divided = [*sizes[:dim], size // step, step, *sizes[dim + 1 :]]
    parts = write(edge.view_copy.default, x, divided)
    one = write(edge.slice_copy.Tensor, parts, dim + 1, start, start + 1)
    write.replace(write(edge.view_copy.default, one, shape))
    log.applied()


def _flip(edge: Any, program: Program, node: torch.fx.Node, log: RewriteLog) -> None:
    """Of a few values, as of the steps of a recurrent layer that goes both ways."""
    given = bound(node)
    x, dims = given["self"], given["dims"]
    sizes = fixed_sizes(x.meta["val"].shape[dim] for dim in dims)
    if not _is_taken(x) or not all(size and size <= _MOST_FLIPPED for size in sizes):
        why = f"its sizes are dynamic or more than {_MOST_FLIPPED}, or its tensor is none of floats"
        log.skipped(node, why)
        return
    write = Writer(program, node)
    for dim, size in zip(dims, sizes, strict=True):
        indices = reversed(range(size))
        ones = [write(edge.slice_copy.Tensor, x, dim, i, i + 1) for i in indices]
        x = write(edge.cat.default, ones, dim)
    write.replace(x)
    log.applied()


def _is_taken(x: Any) -> bool:
    return bool(x.meta["val"].dtype == torch.float32)


def _three(x: Any, second: Any, third: Any = 0) -> tuple[Any, Any, Any]:
    """The arguments of either operator, whose third is a dimension or an index."""
    return x, second, third
