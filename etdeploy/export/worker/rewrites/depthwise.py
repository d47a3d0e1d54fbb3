"""Depthwise kernels of more than 25 taps as the sum of strips.

XNNPACK's depthwise kernels have up to 25 taps; larger ones run through the general path, several
times as long for each tap (ConvNeXt's 7 x 7: 93 ms of 133, as strips 7). A strip has some rows of
the kernel and the padding of the whole, and its output is shifted by them. A strip with padding of
its own would need a pad, which lowers with 8 bits and then fails where the program is loaded.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import torch

from etdeploy.export.worker.rewrites.base import Program, RewriteLog, Writer, bound
from etdeploy.export.worker.rewrites.constants import constant_of
from etdeploy.export.worker.rewrites.pools import MOST_TAPS, pair
from etdeploy.export.worker.tracing.structure import fixed_size

_aten = torch.ops.aten
_CONVOLUTIONS = (_aten.conv1d.default, _aten.conv2d.default, _aten.conv3d.default)


def depthwise_strips(program: Program, log: RewriteLog) -> None:
    """Replaces every such convolution in two dimensions; in place."""
    for node in list(program.graph.nodes):
        if node.target not in _CONVOLUTIONS or not _is_large_depthwise(given := bound(node)):
            continue
        if reason := _why_not(program, node, given):
            log.skipped(node, reason)
            continue
        _replace(program, node, given)
        log.applied()
    program.graph.eliminate_dead_code()
    program.graph_module.recompile()


def has_large_depthwise(program: Program) -> bool:
    """Whether there is a convolution that could be replaced, on whatever target."""
    found = (node for node in program.graph.nodes if node.target in _CONVOLUTIONS)
    return any(_is_large_depthwise(bound(node)) for node in found)


def _is_large_depthwise(given: dict[str, Any]) -> bool:
    weight, groups = given["weight"].meta["val"], given["groups"]
    is_depthwise = groups > 1 and groups == weight.shape[0] and weight.shape[1] == 1
    return bool(is_depthwise and weight[0, 0].numel() > MOST_TAPS)


def _why_not(program: Program, node: torch.fx.Node, given: dict[str, Any]) -> str:
    weight = given["weight"].meta["val"]
    if weight.dim() != 4:
        return "it is in one dimension or in three"
    if weight.dtype != torch.float32:
        return "its tensors are no 32-bit floats"
    if set(pair(given["stride"])) != {1} or set(pair(given["dilation"])) != {1}:
        return "its stride or dilation is not 1"
    if isinstance(given["padding"], str):
        return "its padding is given by name"
    if weight.shape[-1] > MOST_TAPS:
        return f"one row of its kernel has {weight.shape[-1]} taps"
    if fixed_size(node.meta["val"].shape[-2]) is None:
        return "the height of its input is dynamic"
    if constant_of(program, given["weight"]) is None:
        return "its weights are computed"
    return ""


def _weights(program: Program, given: dict[str, Any]) -> torch.Tensor:
    found = constant_of(program, given["weight"])
    if found is None:
        raise ValueError("the weights of a convolution are computed")
    return found.detach()


def _replace(program: Program, node: torch.fx.Node, given: dict[str, Any]) -> None:
    write, weight = Writer(program, node), _weights(program, given)
    rows, columns = weight.shape[-2:]
    height = node.meta["val"].shape[-2]
    padding = pair(given["padding"])
    parts = []
    for start in range(0, rows, MOST_TAPS // columns):
        strip = weight[:, :, start : start + MOST_TAPS // columns].clone()
        part = write.constant(f"strip_{start}_of_{given['weight'].name}", strip)
        bias = given["bias"] if start == 0 else None
        made = write(
            _aten.conv2d.default, given["input"], part, bias, [1, 1], padding, [1, 1],
            given["groups"],
        )  # fmt: skip
        made = write(_aten.slice.Tensor, made, 2, start, start + height)
        parts.append(made)
    write.replace(reduce(lambda total, part: write(_aten.add.Tensor, total, part), parts))
