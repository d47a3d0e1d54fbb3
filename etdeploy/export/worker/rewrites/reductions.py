"""Means, sums, powers and maxima in operators that XNNPACK takes.

Of means, XNNPACK takes those of images alone, whose dimensions stay; it takes no sum. It takes
squares whose exponent is a whole number in the program, and no other power: small ones become
products and roots, and so do the length of vectors and variances.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch

from etdeploy.export.worker.rewrites.base import Program, RewriteLog, Writer, replace_nodes
from etdeploy.export.worker.tracing.structure import fixed_size, fixed_sizes

_aten = torch.ops.aten
_MEANS = (_aten.mean.dim, _aten.mean.default)
_REDUCTIONS = (*_MEANS, _aten.sum.dim_IntList, _aten.sum.default)
_OF_IMAGES = [2, 3]
# A product with a row of ones beats a transposition and a column by a third, up to this many ones.
_MOST_ONES = 1 << 16
# XNNPACK pads a column to the width of its kernels. One that is read once or twice is not worth
# that, so its product is computed in two steps, with columns of about the root of its size.
_LONG, _FEW_ROWS = 2048, 8


def sums_as_products(program: Program, log: RewriteLog) -> None:
    """Replaces every mean and sum of 32-bit floats by a product with ones; in place."""
    replace_nodes(program, log, dict.fromkeys(_REDUCTIONS, _reduced))


def _reduced(write: Writer, given: dict[str, Any]) -> torch.fx.Node | str | None:
    node, x = write.node, given["self"].meta["val"]
    if x.dtype != torch.float32 or given["dtype"] not in (None, torch.float32) or not x.dim():
        return None
    dims = sorted({dim % x.dim() for dim in given.get("dim") or range(x.dim())})
    is_of_image = x.dim() == 4 and dims == _OF_IMAGES
    if is_of_image and node.target is _aten.mean.dim and given["keepdim"]:
        return None
    if is_of_image and _are_fixed(x, dims):
        return _of_image(write, given)
    if _is_by_rows(x, dims):
        return _by_rows(write, given, dims)
    if len(dims) == 1 and _are_fixed(x, dims):
        return _by_column(write, given, dims[0])
    if _are_fixed(x, range(x.dim())):
        return _by_columns(write, given, dims)
    return "it is over a dimension of dynamic size"


def _are_fixed(x: torch.Tensor, dims: Any) -> bool:
    return all(fixed_size(x.shape[dim]) is not None for dim in dims)


def _factor(node: torch.fx.Node, count: int) -> float:
    return 1.0 / count if node.target in _MEANS else 1.0


def _of_image(write: Writer, given: dict[str, Any]) -> torch.fx.Node:
    """By XNNPACK's own mean, which goes by pixel as its convolutions do."""
    made = write(_aten.mean.dim, given["self"], _OF_IMAGES, True)
    if write.node.target not in _MEANS:
        made = write(_aten.mul.Tensor, made, float(_count(given["self"].meta["val"], _OF_IMAGES)))
    return made if given["keepdim"] else write(_aten.squeeze.dims, made, _OF_IMAGES)


def _is_by_rows(x: torch.Tensor, dims: list[int]) -> bool:
    """Whether it is over neighbours that others follow, and not over too many."""
    are_neighbours = dims == list(range(dims[0], dims[-1] + 1))
    return (
        are_neighbours
        and dims[-1] < x.dim() - 1
        and _are_fixed(x, range(x.dim()))
        and _count(x, range(dims[-1] + 1)) <= _MOST_ONES
    )


def _by_column(write: Writer, given: dict[str, Any], dim: int) -> torch.fx.Node:
    """Over one dimension, whatever the others: each row times a column."""
    x, rank = given["self"], given["self"].meta["val"].dim()
    count, is_kept = _count(x.meta["val"], [dim]), given.get("keepdim", False)
    if dim < rank - 1:
        order = [each for each in range(rank) if each != dim]
        x = write(_aten.permute.default, x, [*order, dim])
    made = weighted(write, x, _factor(write.node, count))
    if dim == rank - 1 and is_kept:
        return made
    made = write(_aten.squeeze.dim, made, -1)
    return write(_aten.unsqueeze.default, made, dim) if is_kept else made


def _by_columns(write: Writer, given: dict[str, Any], dims: list[int]) -> torch.fx.Node:
    """Over several dimensions of known sizes, as one."""
    x = given["self"]
    rank, count = x.meta["val"].dim(), _count(x.meta["val"], dims)
    if dims[0] < rank - len(dims):
        order = [each for each in range(rank) if each not in dims]
        x = write(_aten.permute.default, x, [*order, *dims])
    x = write(_aten.reshape.default, x, [_count(x.meta["val"], range(rank)) // count, count])
    made = weighted(write, x, _factor(write.node, count))
    return write(_aten.reshape.default, made, list(write.node.meta["val"].shape))


def _by_rows(write: Writer, given: dict[str, Any], dims: list[int]) -> torch.fx.Node:
    """Over dimensions that others follow: each row of ones times a matrix."""
    x = given["self"]
    value = x.meta["val"]
    matrices, count = _count(value, range(dims[0])), _count(value, dims)
    x = write(_aten.reshape.default, x, [matrices, count, -1])
    factor = _factor(write.node, count)
    name = f"{matrices}_rows_of_{count}_times_{factor!r}"
    rows = write.constant(name, torch.full((matrices, 1, count), factor))
    made = write(_aten.bmm.default, rows, x)
    return write(_aten.reshape.default, made, list(write.node.meta["val"].shape))


def _count(x: torch.Tensor, dims: Any) -> int:
    return math.prod(fixed_size(x.shape[dim]) or 1 for dim in dims)


def weighted(
    write: Writer, x: torch.fx.Node, factor: float, added: float | None = None
) -> torch.fx.Node:
    """The sum over the last dimension, which stays with a size of 1, times a number."""
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
    fixed = fixed_sizes(sizes)
    return None not in fixed and math.prod(fixed) < _FEW_ROWS


def _divisor_near_root(size: int) -> int:
    """The largest divisor up to the root; 1 for a prime."""
    return next(each for each in range(math.isqrt(size), 0, -1) if size % each == 0)


_IMAGE, _SIDES = 4, (2, 3)


def maxima_without_places(program: Program, log: RewriteLog) -> None:
    """Replaces every one of floats that XNNPACK does not lower; in place."""
    replace_nodes(program, log, {_aten.max.dim: _maximum})


def _maximum(write: Writer, given: dict[str, Any]) -> torch.fx.Node | None:
    value = given["self"].meta["val"]
    dim = given["dim"] % value.dim()
    is_lowered = given["keepdim"] and value.dim() == _IMAGE and dim in _SIDES
    if is_lowered or takes_places(write.node) or not value.is_floating_point():
        return None
    return replace_largest(write, _aten.amax.default, given["self"], [dim], given["keepdim"])


def takes_places(node: torch.fx.Node) -> bool:
    """Whether anyone takes more of a maximum than its values, which come first."""
    return any(user.target is not operator.getitem or user.args[1] != 0 for user in node.users)


def replace_largest(write: Writer, target: Any, *args: Any) -> torch.fx.Node:
    """Gives an operator for the values alone to all that take a maximum's; returns the maximum."""
    for user in list(write.node.users):
        write_user = Writer(write.program, user)
        write_user.replace(write_user(target, *args))
    return write.node


_MOST = 4
_ROOTS = {0.5: _aten.sqrt.default, -0.5: _aten.rsqrt.default}


def powers_as_products(program: Program, log: RewriteLog) -> None:
    """Replaces every one of 32-bit floats, and what is made of squares; in place."""
    replace_nodes(program, log, dict.fromkeys(_MAKING, _from_squares))


def _from_squares(write: Writer, given: dict[str, Any]) -> torch.fx.Node | None:
    if given["self"].meta["val"].dtype != torch.float32:
        return None
    return _MAKING[write.node.target](write, given)


def _power(write: Writer, given: dict[str, Any]) -> torch.fx.Node | None:
    x, exponent = given["self"], given["exponent"]
    if exponent in _ROOTS:
        return write(_ROOTS[exponent], x)
    if exponent not in range(2, _MOST + 1):
        return None
    made = x
    for _ in range(int(exponent) - 1):
        made = write(_aten.mul.Tensor, made, x)
    return made


def _length(write: Writer, given: dict[str, Any]) -> torch.fx.Node | None:
    """Euclid's."""
    dims, x = given["dim"], given["self"]
    if given["ord"] != 2 or given.get("dtype"):
        return None
    squares = write(_aten.mul.Tensor, x, x)
    return write(
        _aten.sqrt.default, write(_aten.sum.dim_IntList, squares, dims, given.get("keepdim", False))
    )


def _variance(write: Writer, given: dict[str, Any]) -> torch.fx.Node | None:
    """The mean of the squares of what is less its mean; None where a size of it is dynamic."""
    x, correction = given["self"], given.get("correction", given.get("unbiased"))
    shape = x.meta["val"].shape
    dims = [dim % len(shape) for dim in given.get("dim") or range(len(shape))]
    sizes = [fixed_size(shape[dim]) for dim in dims]
    count = math.prod(size or 0 for size in sizes)
    divisor = count - (1 if correction is None else int(correction))
    if not count or divisor <= 0:
        return None
    centred = write(_aten.sub.Tensor, x, write(_aten.mean.dim, x, dims, True))
    squares = write(_aten.mul.Tensor, centred, centred)
    made = write(_aten.mean.dim, squares, dims, given.get("keepdim", False))
    return made if divisor == count else write(_aten.mul.Tensor, made, count / divisor)


def _deviation(write: Writer, given: dict[str, Any]) -> torch.fx.Node | None:
    made = _variance(write, given)
    return None if made is None else write(_aten.sqrt.default, made)


_MAKING: dict[Any, Callable[[Writer, dict[str, Any]], torch.fx.Node | None]] = {
    _aten.pow.Tensor_Scalar: _power,
    _aten.linalg_vector_norm.default: _length,
    _aten.var.correction: _variance,
    _aten.var.dim: _variance,
    _aten.var.default: _variance,
    _aten.std.correction: _deviation,
    _aten.std.dim: _deviation,
    _aten.std.default: _deviation,
}
