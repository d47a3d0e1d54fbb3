"""PReLU of what is no image, by two ReLUs: XNNPACK's partitioner takes it, and lowering it fails.

ExecuTorch 1.5.1 fails on a linear layer with a PReLU, and on one of signals.
"""

from __future__ import annotations

from typing import Any

import torch

from etdeploy.export.worker.rewrites.base import Program, Told, Writer, bound

_aten = torch.ops.aten
_IMAGE = 4


def prelu_as_relus(program: Program, told: Told) -> None:
    """Replaces every one of 32-bit floats that is of no image; in place."""
    for node in list(program.graph.nodes):
        if node.target is not _aten.prelu.default:
            continue
        given = bound(node)
        value = given["self"].meta["val"]
        if value.dim() == _IMAGE or value.dtype != torch.float32:
            continue
        write = Writer(program, node)
        write.replace(_by_relus(write, given["self"], given["weight"]))
        told.applied()
    program.graph_module.recompile()


def _by_relus(write: Writer, x: torch.fx.Node, weight: torch.fx.Node) -> torch.fx.Node:
    rank = x.meta["val"].dim()
    channels: Any = weight.meta["val"].numel()
    if rank > 1 and channels > 1:
        weight = write(_aten.reshape.default, weight, [channels] + [1] * (rank - 2))
    below = write(_aten.relu.default, write(_aten.neg.default, x))
    above = write(_aten.relu.default, x)
    return write(_aten.sub.Tensor, above, write(_aten.mul.Tensor, below, weight))
