"""Means and sums as products with ones, which XNNPACK takes.

Of means, XNNPACK takes those of images alone, whose dimensions stay; it takes no sum.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from etdeploy.export.worker.rewrites.base import Program, Told, Writer, bound
from etdeploy.export.worker.tracing.structure import fixed_size

_aten = torch.ops.aten
_MEANS = (_aten.mean.dim, _aten.mean.default)
_REDUCTIONS = (*_MEANS, _aten.sum.dim_IntList, _aten.sum.default)
_OF_IMAGES = [2, 3]
# A product with a row of ones beats a transposition and a column by a third, up to this many ones.
_MOST_ONES = 1 << 16
# XNNPACK pads a column to the width of its kernels. One that is read once or twice is not worth
# that, so its product is computed in two steps, with columns of about the root of its size.
_LONG, _FEW_ROWS = 2048, 8


def sums_as_products(program: Program, told: Told) -> None:
    """Replaces every one of 32-bit floats; in place."""
    for node in list(program.graph.nodes):
        if node.target not in _REDUCTIONS or _counts(node):
            continue
        given = bound(node)
        x = given["self"].meta["val"]
        dims = sorted({dim % x.dim() for dim in given.get("dim") or range(x.dim())})
        is_of_image = x.dim() == 4 and dims == _OF_IMAGES
        if is_of_image and node.target is _aten.mean.dim and given["keepdim"]:
            continue
        write = Writer(program, node)
        if is_of_image and _are_fixed(x, dims):
            made = _of_image(write, node)
        elif len(dims) == 1 and fixed_size(x.shape[dims[0]]) is not None:
            made = _of_one(write, node, dims[0])
        elif _are_fixed(x, range(x.dim())):
            made = _of_several(write, node, dims)
        else:
            told.left(node, "it is over a dimension of dynamic size")
            continue
        write.replace(made)
        told.applied()
    program.graph_module.recompile()


def _counts(node: torch.fx.Node) -> bool:
    """Whether it is of other numbers than 32-bit floats, or of one alone."""
    given = bound(node)
    x = given["self"].meta["val"]
    return bool(
        x.dtype != torch.float32 or given["dtype"] not in (None, torch.float32) or x.dim() == 0
    )


def _are_fixed(x: torch.Tensor, dims: Any) -> bool:
    return all(fixed_size(x.shape[dim]) is not None for dim in dims)


def _factor(node: torch.fx.Node, count: int) -> float:
    return 1.0 / count if node.target in _MEANS else 1.0


def _of_image(write: Writer, node: torch.fx.Node) -> torch.fx.Node:
    """By XNNPACK's own mean, which goes by pixel as its convolutions do."""
    given = bound(node)
    made = write(_aten.mean.dim, given["self"], _OF_IMAGES, True)
    if node.target not in _MEANS:
        made = write(_aten.mul.Tensor, made, float(_count(given["self"], _OF_IMAGES)))
    return made if given["keepdim"] else write(_aten.squeeze.dims, made, _OF_IMAGES)


def _of_one(write: Writer, node: torch.fx.Node, dim: int) -> torch.fx.Node:
    given = bound(node)
    x, rank = given["self"], given["self"].meta["val"].dim()
    if dim < rank - 1:
        if _are_fixed(x.meta["val"], range(rank)) and _ones(x, [dim]) <= _MOST_ONES:
            return _as_rows(write, node, [dim])
        order = [each for each in range(rank) if each != dim]
        x = write(_aten.permute.default, x, [*order, dim])
    made = weighted(write, x, _factor(node, _count(given["self"], [dim])))
    is_kept = given.get("keepdim", False)
    if dim == rank - 1 and is_kept:
        return made
    made = write(_aten.squeeze.dim, made, -1)
    return write(_aten.unsqueeze.default, made, dim) if is_kept else made


def _of_several(write: Writer, node: torch.fx.Node, dims: list[int]) -> torch.fx.Node:
    x = bound(node)["self"]
    rank = x.meta["val"].dim()
    are_neighbours = dims == list(range(dims[0], dims[-1] + 1))
    if are_neighbours and dims[-1] < rank - 1 and _ones(x, dims) <= _MOST_ONES:
        return _as_rows(write, node, dims)
    if dims[0] < rank - len(dims):
        order = [each for each in range(rank) if each not in dims]
        x = write(_aten.permute.default, x, [*order, *dims])
    count = _count(x, range(rank - len(dims), rank))
    rows = _count(x, range(rank)) // count
    x = write(_aten.reshape.default, x, [rows, count])
    made = weighted(write, x, _factor(node, count))
    return write(_aten.reshape.default, made, list(node.meta["val"].shape))


def _ones(x: torch.fx.Node, dims: list[int]) -> int:
    """How many the product with rows takes."""
    return _count(x, range(dims[-1] + 1))


def _as_rows(write: Writer, node: torch.fx.Node, dims: list[int]) -> torch.fx.Node:
    """Over dimensions that others follow: each row of ones times a matrix."""
    x = bound(node)["self"]
    matrices, count = _count(x, range(dims[0])), _count(x, dims)
    x = write(_aten.reshape.default, x, [matrices, count, -1])
    factor = _factor(node, count)
    name = f"{matrices}_rows_of_{count}_times_{factor!r}"
    rows = write.constant(name, torch.full((matrices, 1, count), factor))
    made = write(_aten.bmm.default, rows, x)
    return write(_aten.reshape.default, made, list(node.meta["val"].shape))


def _count(x: torch.fx.Node, dims: Any) -> int:
    return math.prod(fixed_size(x.meta["val"].shape[dim]) or 1 for dim in dims)


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
    shape = x.meta["val"].shape
    size = fixed_size(shape[-1]) or 1
    inner = _divisor_near_root(size)
    if size >= _LONG and inner > 1 and _are_few(shape[:-1]):
        x = write(_aten.reshape.default, x, [*shape[:-1], size // inner, inner])
        x = _product(write, x, 1.0 / inner)
        x = write(_aten.reshape.default, x, [*shape[:-1], size // inner])
        factor *= inner
    return _product(write, x, factor, added)


def _product(
    write: Writer, x: torch.fx.Node, factor: float, added: float | None = None
) -> torch.fx.Node:
    size = fixed_size(x.meta["val"].shape[-1]) or 1
    column = write.constant(f"column_of_{size}_times_{factor!r}", torch.full((1, size), factor))
    if added is None:
        return write(_aten.linear.default, x, column)
    bias = write.constant(f"number_{added!r}", torch.tensor([float(added)]))
    return write(_aten.linear.default, x, column, bias)


def _are_few(sizes: Any) -> bool:
    fixed = [fixed_size(size) for size in sizes]
    return None not in fixed and math.prod(size or 0 for size in fixed) < _FEW_ROWS


def _divisor_near_root(size: int) -> int:
    """The largest divisor up to the root; 1 for a prime."""
    return next(each for each in range(math.isqrt(size), 0, -1) if size % each == 0)
