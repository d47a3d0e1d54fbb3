"""Means and sums over one dimension as products with a column, which XNNPACK takes.

Of means, XNNPACK takes those of images alone, whose dimensions stay; it takes no sum.
"""

from __future__ import annotations

from typing import Any

import torch

from etdeploy.export.worker.rewrites.base import Program, Told, Writer, bound
from etdeploy.export.worker.tracing.structure import fixed_size

_aten = torch.ops.aten
_REDUCTIONS = (_aten.mean.dim, _aten.sum.dim_IntList)
_OF_IMAGES = [2, 3]


def sums_as_products(program: Program, told: Told) -> None:
    """Replaces every one of 32-bit floats; in place. Those over other dimensions stay."""
    for node in list(program.graph.nodes):
        if node.target not in _REDUCTIONS:
            continue
        given = bound(node)
        x = given["self"].meta["val"]
        dims = sorted(dim % max(1, x.dim()) for dim in given["dim"] or [])
        is_of_image = node.target is _aten.mean.dim and x.dim() == 4 and dims == _OF_IMAGES
        if len(dims) != 1 and not (is_of_image and not given["keepdim"]):
            continue
        if x.dtype != torch.float32 or given["dtype"] not in (None, torch.float32):
            continue  # of whole numbers, which counts
        if not is_of_image and fixed_size(x.shape[dims[0]]) is None:
            told.left(node, "it is over a dimension of dynamic size")
            continue
        write = Writer(program, node)
        write.replace(_of_image(write, given) if is_of_image else _product(write, node, dims[0]))
        told.applied()
    program.graph_module.recompile()


def _of_image(write: Writer, given: dict[str, Any]) -> torch.fx.Node:
    mean = write(_aten.mean.dim, given["self"], _OF_IMAGES, True)
    return write(_aten.squeeze.dims, mean, _OF_IMAGES)


def _product(write: Writer, node: torch.fx.Node, dim: int) -> torch.fx.Node:
    given = bound(node)
    x, rank = given["self"], given["self"].meta["val"].dim()
    if dim < rank - 1:
        order = [each for each in range(rank) if each != dim]
        x = write(_aten.permute.default, x, [*order, dim])
    size = fixed_size(x.meta["val"].shape[-1]) or 1
    made = weighted(write, x, 1.0 / size if node.target is _aten.mean.dim else 1.0)
    if dim == rank - 1 and given["keepdim"]:
        return made
    made = write(_aten.squeeze.dim, made, -1)
    return write(_aten.unsqueeze.default, made, dim) if given["keepdim"] else made


def weighted(
    write: Writer, x: torch.fx.Node, factor: float, added: float | None = None
) -> torch.fx.Node:
    """The sum over the last dimension, which stays with a size of 1, times a number.

    Args:
        write: Where.
        x: Its last dimension has a known size.
        factor: For each value.
        added: To each sum; None for nothing.
    """
    size = fixed_size(x.meta["val"].shape[-1]) or 1
    column = write.constant(f"column_of_{size}_times_{factor!r}", torch.full((1, size), factor))
    if added is None:
        return write(_aten.linear.default, x, column)
    bias = write.constant(f"number_{added!r}", torch.tensor([float(added)]))
    return write(_aten.linear.default, x, column, bias)
