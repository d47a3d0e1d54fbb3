"""Nearest upsampling by whole factors, for which XNNPACK's partitioner has no rule.

The product with ones, broadcast over two new dimensions, repeats each pixel. A concatenation of a
tensor with itself would be shorter, but the partitioner counts its inputs once. The 320 x 320
detector in docs/performance.md becomes one partition instead of three.
"""

from __future__ import annotations

from typing import Any

import torch

from etdeploy.export.worker.rewrites.base import Program, RewriteLog, Writer, bound
from etdeploy.export.worker.tracing.structure import fixed_sizes

_aten = torch.ops.aten
_KINDS = (_aten.upsample_nearest2d.vec, _aten.upsample_nearest2d.default)


def upsampling_by_ones(program: Program, log: RewriteLog) -> None:
    """Replaces every such upsampling of 32-bit floats; in place."""
    for node in list(program.graph.nodes):
        if node.target not in _KINDS:
            continue
        given = bound(node)
        x = given["input" if "input" in given else "self"]
        factors = _factors(x.meta["val"], node.meta["val"])
        if factors is None:
            log.skipped(node, "its factors are no whole numbers, or its sizes are dynamic")
            continue
        _replace(Writer(program, node), x, factors)
        log.applied()
    program.graph_module.recompile()


def _factors(before: torch.Tensor, after: torch.Tensor) -> tuple[int, int] | None:
    sizes = fixed_sizes((*before.shape, *after.shape))
    if before.dtype != torch.float32 or None in sizes:
        return None
    known: Any = sizes
    *_, height, width = known[:4]
    *_, new_height, new_width = known[4:]
    if new_height % height or new_width % width:
        return None
    return new_height // height, new_width // width


def _replace(write: Writer, x: torch.fx.Node, factors: tuple[int, int]) -> None:
    n, c, height, width = x.meta["val"].shape
    down, across = factors
    ones = write.constant(f"ones_{down}_{across}", torch.ones(1, 1, 1, down, 1, across))
    apart = write(_aten.reshape.default, x, [n, c, height, 1, width, 1])
    repeated = write(_aten.mul.Tensor, apart, ones)
    write.replace(write(_aten.reshape.default, repeated, [n, c, height * down, width * across]))
