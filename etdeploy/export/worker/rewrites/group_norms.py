"""GroupNorm and InstanceNorm in operators that XNNPACK takes, like LayerNorm.

What channels are multiplied with and get added has another shape then, so it has to be known at
export. Of images, XNNPACK's own mean is taken, so that they stay by pixel: as rows of a matrix,
they would be transposed before and after, and PoolFormer would take a third longer.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from etdeploy.export.worker.rewrites.base import Program, RewriteLog, Writer, bound
from etdeploy.export.worker.rewrites.constants import constant_of
from etdeploy.export.worker.rewrites.norms import centred, normed
from etdeploy.export.worker.rewrites.sums import weighted
from etdeploy.export.worker.tracing.structure import fixed_size

_aten = torch.ops.aten
_CHANNELS = ("weight", "bias")
_IMAGE = 4


def group_norms_as_products(program: Program, log: RewriteLog) -> None:
    """Replaces every one of 32-bit floats; in place."""
    for node in list(program.graph.nodes):
        if node.target not in (_aten.group_norm.default, _aten.instance_norm.default):
            continue
        given = bound(node)
        if reason := _why_not(program, given):
            log.skipped(node, reason)
            continue
        _replace(program, node, given)
        log.applied()
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
    write, x = Writer(program, node), given["input"].meta["val"]
    groups = given.get("num_groups", int(x.shape[1]))
    weight, bias = _channels(program, write, given)
    make = _of_image if x.dim() == _IMAGE else _of_rows
    made = make(write, given, groups, weight)
    write.replace(made if bias is None else write(_aten.add.Tensor, made, bias))


def _channels(program: Program, write: Writer, given: dict[str, Any]) -> list[torch.fx.Node | None]:
    """What channels are multiplied with, and get added, in as many dimensions as the input."""
    found = list[torch.fx.Node | None]()
    channels, *others = given["input"].meta["val"].shape[1:]
    for key in _CHANNELS:
        value = None if given[key] is None else constant_of(program, given[key])
        if value is None:
            found.append(None)
            continue
        value = value.detach().reshape([1, int(channels)] + [1] * len(others)).clone()
        found.append(write.constant(f"{given[key].name}_of_{len(others)}_dimensions", value))
    return found


def _of_rows(
    write: Writer, given: dict[str, Any], groups: int, weight: torch.fx.Node | None
) -> torch.fx.Node:
    """Each group is a row."""
    shape = [int(size) for size in given["input"].meta["val"].shape]
    rows = shape[0] * groups
    x = write(_aten.view.default, given["input"], [rows, math.prod(shape) // rows])
    made = normed(write, centred(write, x), given["eps"])
    made = write(_aten.view.default, made, shape)
    return made if weight is None else write(_aten.mul.Tensor, made, weight)


def _of_image(
    write: Writer, given: dict[str, Any], groups: int, weight: torch.fx.Node | None
) -> torch.fx.Node:
    """By XNNPACK's mean of an image's channels, so that the image stays by pixel."""
    x = given["input"]
    made = write(_aten.sub.Tensor, x, _mean_of_groups(write, x, groups))
    squares = write(_aten.mul.Tensor, made, made)
    scale = write(_aten.rsqrt.default, _mean_of_groups(write, squares, groups, given["eps"]))
    if weight is not None:
        scale = write(_aten.mul.Tensor, scale, weight)
    return write(_aten.mul.Tensor, made, scale)


def _mean_of_groups(
    write: Writer, x: torch.fx.Node, groups: int, eps: float | None = None
) -> torch.fx.Node:
    """For each channel that of its group, or one for all; in the shape of an image of a pixel."""
    batch, channels = (int(size) for size in x.meta["val"].shape[:2])
    mean = write(_aten.mean.dim, x, [2, 3], True)
    if groups == channels:
        return mean if eps is None else write(_aten.add.Tensor, mean, float(eps))
    width = channels // groups
    mean = write(_aten.view.default, mean, [batch * groups, width])
    mean = weighted(write, mean, 1.0 / width, eps)
    if groups == 1:
        return write(_aten.view.default, mean, [batch, 1, 1, 1])
    ones = write.constant(f"ones_{width}", torch.ones(1, width))
    return write(_aten.view.default, write(_aten.mul.Tensor, mean, ones), [batch, channels, 1, 1])
