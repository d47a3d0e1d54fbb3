"""Small powers as products and roots; the length of vectors and variances by them.

XNNPACK takes squares whose exponent is a whole number in the program, and no other power.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from etdeploy.export.worker.rewrites.base import Program, RewriteLog, Writer, bound
from etdeploy.export.worker.tracing.structure import fixed_size

_aten = torch.ops.aten
_MOST = 4
_ROOTS = {0.5: _aten.sqrt.default, -0.5: _aten.rsqrt.default}


def powers_as_products(program: Program, log: RewriteLog) -> None:
    """Replaces every one of 32-bit floats, and what is made of squares; in place."""
    for node in list(program.graph.nodes):
        make = _MAKING.get(node.target)
        given = bound(node) if make else {}
        if make is None or given["self"].meta["val"].dtype != torch.float32:
            continue
        made = make(Writer(program, node), given)
        if made is not None:
            node.replace_all_uses_with(made)
            program.graph.erase_node(node)
            log.applied()
    program.graph_module.recompile()


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


_MAKING: dict[Any, Any] = {
    _aten.pow.Tensor_Scalar: _power,
    _aten.linalg_vector_norm.default: _length,
    _aten.var.correction: _variance,
    _aten.var.dim: _variance,
    _aten.var.default: _variance,
    _aten.std.correction: _deviation,
    _aten.std.dim: _deviation,
    _aten.std.default: _deviation,
}
