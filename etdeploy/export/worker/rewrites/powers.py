"""Small powers as products and roots; the length of vectors by them.

XNNPACK takes squares whose exponent is a whole number in the program, and no other power.
"""

from __future__ import annotations

from typing import Any

import torch

from etdeploy.export.worker.rewrites.base import Program, Told, Writer, bound

_aten = torch.ops.aten
_MOST = 4
_ROOTS = {0.5: _aten.sqrt.default, -0.5: _aten.rsqrt.default}


def powers_as_products(program: Program, told: Told) -> None:
    """Replaces every one of 32-bit floats, and the length of vectors; in place."""
    for node in list(program.graph.nodes):
        make = _MAKING.get(node.target)
        given = bound(node) if make else {}
        if make is None or given["self"].meta["val"].dtype != torch.float32:
            continue
        made = make(Writer(program, node), given)
        if made is not None:
            node.replace_all_uses_with(made)
            program.graph.erase_node(node)
            told.applied()
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
    """Euclid's, over one dimension."""
    dims, x = given["dim"], given["self"]
    if given["ord"] != 2 or dims is None or len(dims) != 1 or given.get("dtype"):
        return None
    squares = write(_aten.mul.Tensor, x, x)
    return write(_aten.sqrt.default, write(_aten.sum.dim_IntList, squares, dims, given["keepdim"]))


_MAKING: dict[Any, Any] = {
    _aten.pow.Tensor_Scalar: _power,
    _aten.linalg_vector_norm.default: _length,
}
