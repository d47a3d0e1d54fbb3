"""LayerNorm in operators that XNNPACK takes.

XNNPACK's partitioner has no rule for native_layer_norm, and takes no mean over the last dimension
alone: two norms of each layer part what is delegated. A product with a column of 1 / n is the same
mean. ViT-tiny becomes one partition instead of 26.
"""

from __future__ import annotations

from typing import Any

import torch

from etdeploy.export.worker.rewrites.base import Program, Told, Writer, bound
from etdeploy.export.worker.tracing.structure import fixed_size

_aten = torch.ops.aten


def norms_as_products(program: Program, told: Told) -> None:
    """Replaces every LayerNorm over the last dimension of 32-bit floats; in place."""
    for node in list(program.graph.nodes):
        if node.target is not _aten.layer_norm.default:
            continue
        given = bound(node)
        if reason := _why_not(given):
            told.left(node, reason)
            continue
        _replace(Writer(program, node), given)
        told.applied()
    program.graph_module.recompile()


def _why_not(given: dict[str, Any]) -> str:
    if given["input"].meta["val"].dtype != torch.float32:
        return "its tensors are no 32-bit floats"
    if len(given["normalized_shape"]) != 1 or fixed_size(given["normalized_shape"][0]) is None:
        return "it is over several dimensions, or over one of dynamic size"
    return ""


def _replace(write: Writer, given: dict[str, Any]) -> None:
    x, [size] = given["input"], given["normalized_shape"]
    column = write.constant(f"mean_of_{size}", torch.full((1, size), 1.0 / size))
    epsilon = torch.tensor([float(given["eps"])])
    added = write.constant(f"epsilon_{given['eps']!r}", epsilon)
    mean = write(_aten.linear.default, x, column)
    centred = write(_aten.sub.Tensor, x, mean)
    squares = write(_aten.mul.Tensor, centred, centred)
    variance = write(_aten.linear.default, squares, column, added)
    made = write(_aten.mul.Tensor, centred, write(_aten.rsqrt.default, variance))
    if given["weight"] is not None:
        made = write(_aten.mul.Tensor, made, given["weight"])
    if given["bias"] is not None:
        made = write(_aten.add.Tensor, made, given["bias"])
    write.replace(made)
