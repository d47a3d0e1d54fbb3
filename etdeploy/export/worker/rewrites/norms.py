"""LayerNorm and RMSNorm in operators that XNNPACK takes.

XNNPACK's partitioner has no rule for native_layer_norm, and takes no mean over the last dimension
alone: two norms of each layer part what is delegated. A product with a column of 1 / n is the same
mean. ViT-tiny becomes one partition instead of 26.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from etdeploy.export.worker.rewrites.base import Program, RewriteLog, Writer, bound
from etdeploy.export.worker.rewrites.sums import weighted
from etdeploy.export.worker.tracing.structure import fixed_size

_aten = torch.ops.aten


def norms_as_products(program: Program, log: RewriteLog) -> None:
    """Replaces every one of 32-bit floats; in place."""
    for node in list(program.graph.nodes):
        replace = _REPLACING.get(node.target)
        if replace is None:
            continue
        given = bound(node)
        if reason := _why_not(given):
            log.skipped(node, reason)
            continue
        replace(Writer(program, node), given)
        log.applied()
    program.graph_module.recompile()


def _why_not(given: dict[str, Any]) -> str:
    if given["input"].meta["val"].dtype != torch.float32:
        return "its tensors are no 32-bit floats"
    if None in map(fixed_size, given["normalized_shape"]):
        return "it is over a dimension of dynamic size"
    if len(given["normalized_shape"]) > 1 and None in map(fixed_size, _shape(given)):
        return "it is over several dimensions, and sizes are dynamic"
    return ""


def _shape(given: dict[str, Any]) -> list[Any]:
    return list(given["input"].meta["val"].shape)


def _layer_norm(write: Writer, given: dict[str, Any]) -> None:
    made = normed(write, centred(write, _rows(write, given)), given["eps"])
    _replace(write, given, made)


def _rms_norm(write: Writer, given: dict[str, Any]) -> None:
    eps = torch.finfo(torch.float32).eps if given["eps"] is None else given["eps"]
    _replace(write, given, normed(write, _rows(write, given), eps))


def _rows(write: Writer, given: dict[str, Any]) -> torch.fx.Node:
    """What is normed, with one dimension for all that it is over."""
    x: torch.fx.Node = given["input"]
    several = len(given["normalized_shape"])
    if several == 1:
        return x
    return write(
        _aten.reshape.default, x, [*_shape(given)[:-several], math.prod(_shape(given)[-several:])]
    )


def centred(write: Writer, x: torch.fx.Node) -> torch.fx.Node:
    """Less its mean over the last dimension."""
    return write(_aten.sub.Tensor, x, _mean(write, x))


def normed(write: Writer, x: torch.fx.Node, eps: float) -> torch.fx.Node:
    """By the root of the mean of its squares over the last dimension."""
    squares = write(_aten.mul.Tensor, x, x)
    return write(_aten.mul.Tensor, x, write(_aten.rsqrt.default, _mean(write, squares, eps)))


def _replace(write: Writer, given: dict[str, Any], made: torch.fx.Node) -> None:
    if len(given["normalized_shape"]) > 1:
        made = write(_aten.reshape.default, made, _shape(given))
    if given["weight"] is not None:
        made = write(_aten.mul.Tensor, made, given["weight"])
    if given.get("bias") is not None:
        made = write(_aten.add.Tensor, made, given["bias"])
    write.replace(made)


def _mean(write: Writer, x: torch.fx.Node, eps: float | None = None) -> torch.fx.Node:
    """Over the last dimension, which stays, with a size of 1."""
    return weighted(write, x, 1.0 / (fixed_size(x.meta["val"].shape[-1]) or 1), eps)


_REPLACING: dict[Any, Callable[[Writer, dict[str, Any]], None]] = {
    _aten.layer_norm.default: _layer_norm,
    _aten.rms_norm.default: _rms_norm,
}
