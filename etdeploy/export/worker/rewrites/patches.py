"""Windows of images that do not overlap, taken apart and put together as views.

ExecuTorch computes the place of each pixel at each inference, and looks it up: a quarter of the
time of MobileViTV2.
"""

from __future__ import annotations

from typing import Any

import torch

from etdeploy.export.worker.rewrites.base import Program, RewriteLog, Writer, bound
from etdeploy.export.worker.rewrites.pools import pair
from etdeploy.export.worker.tracing.structure import fixed_sizes

_aten = torch.ops.aten
# Of a window's row y and column x, and those of a pixel in it: (n, c, y, dy, x, dx) becomes
# (n, c, dy, dx, y, x), and the other way round.
_APART, _TOGETHER = [0, 1, 3, 5, 2, 4], [0, 1, 4, 2, 5, 3]


def patches_as_views(program: Program, log: RewriteLog) -> None:
    """Replaces every unfold and fold of known sizes whose windows stand side by side; in place."""
    for node in list(program.graph.nodes):
        if node.target not in (_aten.im2col.default, _aten.col2im.default):
            continue
        given = bound(node)
        image = (given["self"] if node.target is _aten.im2col.default else node).meta["val"]
        sizes = fixed_sizes(image.shape)
        if image.dim() != 4 or None in sizes or not _are_side_by_side(given, sizes):
            log.skipped(node, "its windows overlap or leave pixels out, or its sizes are dynamic")
            continue
        write = Writer(program, node)
        replace = _unfold if node.target is _aten.im2col.default else _fold
        write.replace(replace(write, given, sizes))
        log.applied()
    program.graph_module.recompile()


def _are_side_by_side(given: dict[str, Any], sizes: list[Any]) -> bool:
    kernel = pair(given["kernel_size"])
    return (
        pair(given["stride"]) == kernel
        and not any(given["padding"])
        and set(given["dilation"]) == {1}
        and not any(size % width for size, width in zip(sizes[2:], kernel, strict=True))
    )


def _unfold(write: Writer, given: dict[str, Any], sizes: list[Any]) -> torch.fx.Node:
    """(n, c, h, w) to (n, c * pixels of a window, windows)."""
    (n, c, height, width), (down, across) = sizes, pair(given["kernel_size"])
    rows, columns = height // down, width // across
    apart = write(_aten.reshape.default, given["self"], [n, c, rows, down, columns, across])
    turned = write(_aten.permute.default, apart, _APART)
    return write(_aten.reshape.default, turned, [n, c * down * across, rows * columns])


def _fold(write: Writer, given: dict[str, Any], sizes: list[Any]) -> torch.fx.Node:
    """The inverse."""
    (n, c, height, width), (down, across) = sizes, pair(given["kernel_size"])
    rows, columns = height // down, width // across
    apart = write(_aten.reshape.default, given["self"], [n, c, down, across, rows, columns])
    turned = write(_aten.permute.default, apart, _TOGETHER)
    return write(_aten.reshape.default, turned, [n, c, height, width])
