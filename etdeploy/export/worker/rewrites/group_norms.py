"""GroupNorm and InstanceNorm in operators that XNNPACK takes, like LayerNorm.

Each group is a row of a matrix. What its channels are multiplied with and get added has another
shape then, so it has to be known at export.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from etdeploy.export.worker.rewrites.base import Program, Told, Writer, bound
from etdeploy.export.worker.rewrites.constants import constant_of
from etdeploy.export.worker.rewrites.norms import centred, normed
from etdeploy.export.worker.tracing.structure import fixed_size

_aten = torch.ops.aten
_CHANNELS = ("weight", "bias")


def group_norms_as_products(program: Program, told: Told) -> None:
    """Replaces every one of 32-bit floats; in place."""
    for node in list(program.graph.nodes):
        if node.target not in (_aten.group_norm.default, _aten.instance_norm.default):
            continue
        given = bound(node)
        if reason := _why_not(program, given):
            told.left(node, reason)
            continue
        _replace(program, node, given)
        told.applied()
    program.graph_module.recompile()


def _why_not(program: Program, given: dict[str, Any]) -> str:
    x = given["input"].meta["val"]
    if x.dtype != torch.float32:
        return "its tensors are no 32-bit floats"
    if any(fixed_size(size) is None for size in x.shape):
        return "its sizes are dynamic"
    if not given.get("use_input_stats", True):
        return "it takes the statistics of the training"
    if any(given[k] is not None and constant_of(program, given[k]) is None for k in _CHANNELS):
        return "its weights are computed"
    return ""


def _replace(program: Program, node: torch.fx.Node, given: dict[str, Any]) -> None:
    write, shape = Writer(program, node), [int(size) for size in given["input"].meta["val"].shape]
    batch, channels = shape[:2]
    rows = batch * given.get("num_groups", channels)
    x = write(_aten.view.default, given["input"], [rows, math.prod(shape) // rows])
    made = normed(write, centred(write, x), given["eps"])
    made = write(_aten.view.default, made, shape)
    for key, operator in zip(_CHANNELS, (_aten.mul.Tensor, _aten.add.Tensor), strict=True):
        value = None if given[key] is None else constant_of(program, given[key])
        if value is not None:
            value = value.detach().reshape([channels] + [1] * (len(shape) - 2)).clone()
            name = f"{given[key].name}_of_{len(shape)}_dimensions"
            made = write(operator, made, write.constant(name, value))
    write.replace(made)
