"""Averages over windows that XNNPACK's partitioner refuses.

Where the padding counts as zeros, an average is a depthwise convolution with equal weights: of
Inception-V3's time, 68 % went to nine of them. An adaptive one is plain where its windows do not
overlap, nothing where they have one pixel, and else a product along each side of the image.
"""

from __future__ import annotations

from typing import Any

import torch

from etdeploy.export.worker.rewrites.base import Program, RewriteLog, Writer, bound
from etdeploy.export.worker.rewrites.sums import replace_largest, takes_places
from etdeploy.export.worker.tracing.structure import fixed_size, fixed_sizes

_aten = torch.ops.aten
_OF_SIGNALS = (_aten.avg_pool1d.default, _aten.max_pool1d.default)
_SIGNAL = 3
_POOLS = (_aten.avg_pool2d.default, _aten.adaptive_avg_pool2d.default)
_Pair = list[int]


def pools_as_convolutions(program: Program, log: RewriteLog) -> None:
    """Replaces those of 32-bit floats that count zeros, and adaptive ones; in place.

    Those of signals become those of images of one row, and adaptive maxima plain ones.
    """
    for node in list(program.graph.nodes):
        if node.target in _OF_SIGNALS and node.meta["val"].dim() == _SIGNAL:
            _as_image(Writer(program, node), node)
            log.applied()
        elif node.target is _aten.adaptive_max_pool2d.default:
            _largest(program, node, log)
    for node in list(program.graph.nodes):
        if node.target not in _POOLS or _is_taken(node):
            continue
        image, pooled = bound(node)["self"].meta["val"], node.meta["val"]
        sizes = fixed_sizes((*image.shape, *pooled.shape))
        if image.dtype != torch.float32 or image.dim() != 4 or None in sizes:
            log.skipped(node, "dynamic shape, or not an image of float32")
            continue
        write, is_plain = Writer(program, node), node.target is _aten.avg_pool2d.default
        made = _average(write, node) if is_plain else _adaptive(write, node)
        if made is None:
            log.skipped(node, "its last windows reach over the edge (ceil_mode)")
            continue
        write.replace(made)
        log.applied()
    program.graph_module.recompile()


def _as_image(write: Writer, node: torch.fx.Node) -> None:
    given = bound(node)
    image = write(_aten.unsqueeze.default, given["self"], -2)
    kernel, stride = pair(given["kernel_size"])[1], pair(given["stride"] or given["kernel_size"])[1]
    sides = [[1, kernel], [1, stride], [0, pair(given["padding"])[1]]]
    if node.target is _aten.avg_pool1d.default:
        rest = [given["ceil_mode"], given["count_include_pad"]]
        made = write(_aten.avg_pool2d.default, image, *sides, *rest)
    else:
        rest = [[1, pair(given["dilation"])[1]], given["ceil_mode"]]
        made = write(_aten.max_pool2d.default, image, *sides, *rest)
    write.replace(write(_aten.squeeze.dim, made, -2))


def _largest(program: Program, node: torch.fx.Node, log: RewriteLog) -> None:
    """Adaptive maxima, which ExecuTorch does not lower, of windows that stand side by side."""
    x = bound(node)["self"]
    values = node.meta["val"][0]
    sizes = fixed_sizes((*x.meta["val"].shape[-2:], *values.shape[-2:]))
    if None in sizes or takes_places(node) or sizes[0] % sizes[2] or sizes[1] % sizes[3]:
        log.skipped(node, "its windows overlap, its places are asked for, or its sizes are dynamic")
        return
    kernel = [sizes[0] // sizes[2], sizes[1] // sizes[3]]
    replace_largest(program, node, _aten.max_pool2d.default, x, kernel, kernel)
    log.applied()


def _is_taken(node: torch.fx.Node) -> bool:
    """Whether XNNPACK takes it as it is: a plain one, or the mean of the image."""
    given = bound(node)
    if node.target is _aten.adaptive_avg_pool2d.default:
        return fixed_sizes(node.meta["val"].shape[-2:]) == [1, 1]
    return not (given["ceil_mode"] or given["divisor_override"] or _counts_zeros(given))


def _counts_zeros(given: dict[str, Any]) -> bool:
    return bool(given["count_include_pad"] and any(pair(given["padding"])))


def _average(write: Writer, node: torch.fx.Node) -> torch.fx.Node | None:
    """None where windows are cut off, so that each has a divisor of its own."""
    given = bound(node)
    x, kernel, padding = given["self"], pair(given["kernel_size"]), pair(given["padding"])
    stride = pair(given["stride"]) or kernel
    fitting = [
        (size + 2 * around - width) // step + 1
        for size, width, step, around in zip(_image(x), kernel, stride, padding, strict=True)
    ]
    if fitting != _image(node):
        return None
    if not given["divisor_override"] and not _counts_zeros(given):
        return write(_aten.avg_pool2d.default, x, kernel, stride, padding, False, False)
    divisor = given["divisor_override"] or kernel[0] * kernel[1]
    if kernel[0] * kernel[1] <= MOST_TAPS:
        return _convolved(write, x, kernel, stride, padding, 1.0 / divisor)
    x = _convolved(write, x, [1, kernel[1]], [1, stride[1]], [0, padding[1]], 1.0 / kernel[1])
    row = kernel[1] / divisor
    return _convolved(write, x, [kernel[0], 1], [stride[0], 1], [padding[0], 0], row)


def _convolved(
    write: Writer, x: torch.fx.Node, kernel: _Pair, stride: _Pair, padding: _Pair, weight: float
) -> torch.fx.Node:
    """Each channel by itself, with the same weight for each pixel of a window."""
    channels = int(x.meta["val"].shape[1])
    name = f"average_of_{channels}_in_{kernel[0]}_{kernel[1]}_times_{weight!r}"
    weights = write.constant(name, torch.full((channels, 1, *kernel), weight))
    return write(_aten.conv2d.default, x, weights, None, stride, padding, [1, 1], channels)


def _adaptive(write: Writer, node: torch.fx.Node) -> torch.fx.Node:
    x = bound(node)["self"]
    before, after = _image(x), _image(node)
    if before == after:
        return x
    if not any(size % parts for size, parts in zip(before, after, strict=True)):
        kernel = [size // parts for size, parts in zip(before, after, strict=True)]
        return write(_aten.avg_pool2d.default, x, kernel, kernel)
    for size, parts in zip(before[::-1], after[::-1], strict=True):
        windows = write.constant(f"windows_{size}_{parts}", _windows(size, parts))
        x = write(_aten.transpose.int, write(_aten.linear.default, x, windows), 2, 3)
    return x


def _windows(size: int, parts: int) -> torch.Tensor:
    """(parts, size): what each pixel adds to each average, by the windows of PyTorch."""
    found = torch.zeros(parts, size)
    for part in range(parts):
        start, end = part * size // parts, -(-(part + 1) * size // parts)
        found[part, start:end] = 1.0 / (end - start)
    return found


def _image(node: torch.fx.Node) -> _Pair:
    """Height and width, which are known."""
    return [fixed_size(size) or 0 for size in node.meta["val"].shape[-2:]]


# Of XNNPACK's depthwise kernels.
MOST_TAPS = 25


def pair(value: Any) -> list[int]:
    """The height's and the width's, of a number for both or of a list; none for an empty list."""
    found = list(value) if isinstance(value, list | tuple) else [value]
    return found * 2 if len(found) == 1 else found
