"""Norms in operators that XNNPACK takes.

XNNPACK's partitioner has no rule for native_layer_norm, and takes no mean over the last dimension
alone: two norms of each layer part what is delegated. A product with a column of 1 / n is the same
mean. ViT-tiny becomes one partition instead of 26.

What the channels of a GroupNorm or InstanceNorm are multiplied with and get added has another shape
then, so it has to be known at export. Of images, XNNPACK's own mean is taken, so that they stay by
pixel: as rows of a matrix, they would be transposed before and after, and PoolFormer would take a
third longer.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from etdeploy.export.worker.rewrites.base import Program, RewriteLog, Writer, replace_nodes
from etdeploy.export.worker.rewrites.constants import constant_of
from etdeploy.export.worker.rewrites.reductions import weighted
from etdeploy.export.worker.tracing.structure import fixed_size

_aten = torch.ops.aten


def norms_as_products(program: Program, log: RewriteLog) -> None:
    """Replaces every norm of 32-bit floats; in place."""
    replace_nodes(
        program,
        log,
        {_aten.group_norm.default: _group_norm, _aten.instance_norm.default: _group_norm},
    )
    replace_nodes(
        program, log, {_aten.layer_norm.default: _layer_norm, _aten.rms_norm.default: _rms_norm}
    )


def _why_not(given: dict[str, Any]) -> str:
    if given["input"].meta["val"].dtype != torch.float32:
        return "its tensors are not 32-bit floats"
    if None in map(fixed_size, given["normalized_shape"]):
        return "it is over a dimension of dynamic size"
    if len(given["normalized_shape"]) > 1 and None in map(fixed_size, _shape(given)):
        return "it is over several dimensions, and sizes are dynamic"
    return ""


def _shape(given: dict[str, Any]) -> list[Any]:
    return list(given["input"].meta["val"].shape)


def _layer_norm(write: Writer, given: dict[str, Any]) -> torch.fx.Node | str:
    if reason := _why_not(given):
        return reason
    made = _normed(write, _centred(write, _rows(write, given)), given["eps"])
    return _scaled(write, given, made)


def _rms_norm(write: Writer, given: dict[str, Any]) -> torch.fx.Node | str:
    if reason := _why_not(given):
        return reason
    eps = torch.finfo(torch.float32).eps if given["eps"] is None else given["eps"]
    return _scaled(write, given, _normed(write, _rows(write, given), eps))


def _rows(write: Writer, given: dict[str, Any]) -> torch.fx.Node:
    """What is normed, with one dimension for all that it is over."""
    x: torch.fx.Node = given["input"]
    several = len(given["normalized_shape"])
    if several == 1:
        return x
    return write(
        _aten.reshape.default, x, [*_shape(given)[:-several], math.prod(_shape(given)[-several:])]
    )


def _centred(write: Writer, x: torch.fx.Node) -> torch.fx.Node:
    """Less its mean over the last dimension."""
    return write(_aten.sub.Tensor, x, _mean(write, x))


def _normed(write: Writer, x: torch.fx.Node, eps: float) -> torch.fx.Node:
    """By the root of the mean of its squares over the last dimension."""
    squares = write(_aten.mul.Tensor, x, x)
    return write(_aten.mul.Tensor, x, write(_aten.rsqrt.default, _mean(write, squares, eps)))


def _scaled(write: Writer, given: dict[str, Any], made: torch.fx.Node) -> torch.fx.Node:
    if len(given["normalized_shape"]) > 1:
        made = write(_aten.reshape.default, made, _shape(given))
    if given["weight"] is not None:
        made = write(_aten.mul.Tensor, made, given["weight"])
    if given.get("bias") is not None:
        made = write(_aten.add.Tensor, made, given["bias"])
    return made


def _mean(write: Writer, x: torch.fx.Node, eps: float | None = None) -> torch.fx.Node:
    """Over the last dimension, which stays, with a size of 1."""
    return weighted(write, x, 1.0 / (fixed_size(x.meta["val"].shape[-1]) or 1), eps)


_CHANNELS = ("weight", "bias")
_IMAGE = 4


def _why_group_not(program: Program, given: dict[str, Any]) -> str:
    x = given["input"].meta["val"]
    if x.dtype != torch.float32:
        return "its tensors are not 32-bit floats"
    if any(fixed_size(size) is None for size in x.shape):
        return "its sizes are dynamic"
    if not given.get("use_input_stats", True):
        return "it takes the statistics of the training"
    if any(given[k] is not None and constant_of(program, given[k]) is None for k in _CHANNELS):
        return "its weights are computed"
    return ""


def _group_norm(write: Writer, given: dict[str, Any]) -> torch.fx.Node | str:
    if reason := _why_group_not(write.program, given):
        return reason
    x = given["input"].meta["val"]
    groups = given.get("num_groups", int(x.shape[1]))
    weight, bias = _channels(write, given)
    make = _of_image if x.dim() == _IMAGE else _of_rows
    made = make(write, given, groups, weight)
    return made if bias is None else write(_aten.add.Tensor, made, bias)


def _channels(write: Writer, given: dict[str, Any]) -> list[torch.fx.Node | None]:
    """What channels are multiplied with, and get added, in as many dimensions as the input."""
    found = list[torch.fx.Node | None]()
    channels, *others = given["input"].meta["val"].shape[1:]
    for key in _CHANNELS:
        value = None if given[key] is None else constant_of(write.program, given[key])
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
    made = _normed(write, _centred(write, x), given["eps"])
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
