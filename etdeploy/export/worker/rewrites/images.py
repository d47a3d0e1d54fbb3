"""Operators of images that XNNPACK's partitioner refuses, or computes slowly.

Pools: where the padding counts as zeros, an average is a depthwise convolution with equal weights:
of Inception-V3's time, 68 % went to nine of them. An adaptive one is plain where its windows do not
overlap, nothing where they have one pixel, and else a product along each side of the image.

Depthwise kernels of more than 25 taps, as the sum of strips: XNNPACK's depthwise kernels have up to
25 taps; larger ones run through the general path, several times as long for each tap (ConvNeXt's
7 x 7: 93 ms of 133, as strips 7). A strip has some rows of the kernel and the padding of the whole,
and its output is shifted by them. Separate padding for each strip would need a pad, which lowers
with 8 bits and then fails where the program is loaded.

Patches, windows of images that do not overlap, are taken apart and put together as views:
ExecuTorch computes the place of each pixel at each inference, and looks it up: a quarter of the
time of MobileViTV2.

Nearest upsampling by whole factors: the product with ones, broadcast over two new dimensions,
repeats each pixel. A concatenation of a tensor with itself would be shorter, but the partitioner
counts its inputs once. The 320 x 320 detector in docs/performance.md becomes one partition instead
of three.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from typing import Any

import torch

from etdeploy.backends.rewrites import CHANNELS_LAST
from etdeploy.export.worker.rewrites.base import Program, RewriteLog, Writer, bound, replace_nodes
from etdeploy.export.worker.rewrites.constants import constant_of
from etdeploy.export.worker.rewrites.reductions import replace_largest, takes_places
from etdeploy.export.worker.tracing.structure import (
    ExampleInputs,
    by_parameter,
    dotted,
    fixed_size,
    fixed_sizes,
    leaves,
)
from etdeploy.export.worker.tracing.tensors import is_by_pixel

_aten = torch.ops.aten
# Of XNNPACK's depthwise kernels.
_MOST_TAPS = 25
_SIGNAL = 3
_Pair = list[int]


def pools_as_convolutions(program: Program, log: RewriteLog) -> None:
    """Replaces those of 32-bit floats that count zeros, and adaptive ones; in place.

    Those of signals become those of images of one row, and adaptive maxima plain ones.
    """
    replace_nodes(
        program,
        log,
        {
            _aten.avg_pool1d.default: _as_image,
            _aten.max_pool1d.default: _as_image,
            _aten.adaptive_max_pool2d.default: _largest,
        },
    )
    replace_nodes(
        program, log, {_aten.avg_pool2d.default: _pool, _aten.adaptive_avg_pool2d.default: _pool}
    )


def _pool(write: Writer, given: dict[str, Any]) -> torch.fx.Node | str | None:
    node, image = write.node, given["self"].meta["val"]
    if _is_taken(node, given):
        return None
    sizes = fixed_sizes((*image.shape, *node.meta["val"].shape))
    if image.dtype != torch.float32 or image.dim() != 4 or None in sizes:
        return "dynamic shape, or not an image of float32"
    if node.target is _aten.adaptive_avg_pool2d.default:
        return _adaptive(write, given["self"])
    made = _average(write, given)
    return "its last windows reach over the edge (ceil_mode)" if made is None else made


def _as_image(write: Writer, given: dict[str, Any]) -> torch.fx.Node | None:
    if write.node.meta["val"].dim() != _SIGNAL:
        return None
    image = write(_aten.unsqueeze.default, given["self"], -2)
    kernel = _pair(given["kernel_size"])[1]
    stride = _pair(given["stride"] or given["kernel_size"])[1]
    sides = [[1, kernel], [1, stride], [0, _pair(given["padding"])[1]]]
    if write.node.target is _aten.avg_pool1d.default:
        rest = [given["ceil_mode"], given["count_include_pad"]]
        made = write(_aten.avg_pool2d.default, image, *sides, *rest)
    else:
        rest = [[1, _pair(given["dilation"])[1]], given["ceil_mode"]]
        made = write(_aten.max_pool2d.default, image, *sides, *rest)
    return write(_aten.squeeze.dim, made, -2)


def _largest(write: Writer, given: dict[str, Any]) -> torch.fx.Node | str:
    """Adaptive maxima, which ExecuTorch does not lower, of windows that stand side by side."""
    x, values = given["self"], write.node.meta["val"][0]
    sizes = fixed_sizes((*x.meta["val"].shape[-2:], *values.shape[-2:]))
    if None in sizes or takes_places(write.node) or sizes[0] % sizes[2] or sizes[1] % sizes[3]:
        return "its windows overlap, its places are asked for, or its sizes are dynamic"
    kernel = [sizes[0] // sizes[2], sizes[1] // sizes[3]]
    return replace_largest(write, _aten.max_pool2d.default, x, kernel, kernel)


def _is_taken(node: torch.fx.Node, given: dict[str, Any]) -> bool:
    """Whether XNNPACK takes it as it is: a plain one, or the mean of the image."""
    if node.target is _aten.adaptive_avg_pool2d.default:
        return fixed_sizes(node.meta["val"].shape[-2:]) == [1, 1]
    return not (given["ceil_mode"] or given["divisor_override"] or _counts_zeros(given))


def _counts_zeros(given: dict[str, Any]) -> bool:
    return bool(given["count_include_pad"] and any(_pair(given["padding"])))


def _average(write: Writer, given: dict[str, Any]) -> torch.fx.Node | None:
    """None where windows are cut off, so that each has another divisor."""
    x, kernel, padding = given["self"], _pair(given["kernel_size"]), _pair(given["padding"])
    stride = _pair(given["stride"]) or kernel
    fitting = [
        (size + 2 * around - width) // step + 1
        for size, width, step, around in zip(_image(x), kernel, stride, padding, strict=True)
    ]
    if fitting != _image(write.node):
        return None
    if not given["divisor_override"] and not _counts_zeros(given):
        return write(_aten.avg_pool2d.default, x, kernel, stride, padding, False, False)
    divisor = given["divisor_override"] or kernel[0] * kernel[1]
    if kernel[0] * kernel[1] <= _MOST_TAPS:
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


def _adaptive(write: Writer, x: torch.fx.Node) -> torch.fx.Node:
    before, after = _image(x), _image(write.node)
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


def _pair(value: Any) -> list[int]:
    """The height's and the width's, of a number for both or of a list; none for an empty list."""
    found = list(value) if isinstance(value, list | tuple) else [value]
    return found * 2 if len(found) == 1 else found


_CONVOLUTIONS = (_aten.conv1d.default, _aten.conv2d.default, _aten.conv3d.default)


def depthwise_strips(program: Program, log: RewriteLog) -> None:
    """Replaces every such convolution in two dimensions; in place."""
    replace_nodes(program, log, dict.fromkeys(_CONVOLUTIONS, _strips))


def has_large_depthwise(program: Program) -> bool:
    """Whether there is a convolution that could be replaced, on whatever target."""
    found = (node for node in program.graph.nodes if node.target in _CONVOLUTIONS)
    return any(_is_large_depthwise(bound(node)) for node in found)


def _is_large_depthwise(given: dict[str, Any]) -> bool:
    weight, groups = given["weight"].meta["val"], given["groups"]
    is_depthwise = groups > 1 and groups == weight.shape[0] and weight.shape[1] == 1
    return bool(is_depthwise and weight[0, 0].numel() > _MOST_TAPS)


def _why_no_strips(write: Writer, given: dict[str, Any]) -> str:
    weight = given["weight"].meta["val"]
    if weight.dim() != 4:
        return "it is in one dimension or in three"
    if weight.dtype != torch.float32:
        return "its tensors are not 32-bit floats"
    if set(_pair(given["stride"])) != {1} or set(_pair(given["dilation"])) != {1}:
        return "its stride or dilation is not 1"
    if isinstance(given["padding"], str):
        return "its padding is given by name"
    if weight.shape[-1] > _MOST_TAPS:
        return f"one row of its kernel has {weight.shape[-1]} taps"
    if fixed_size(write.node.meta["val"].shape[-2]) is None:
        return "the height of its input is dynamic"
    if constant_of(write.program, given["weight"]) is None:
        return "its weights are computed"
    return ""


def _strips(write: Writer, given: dict[str, Any]) -> torch.fx.Node | str | None:
    if not _is_large_depthwise(given):
        return None
    if reason := _why_no_strips(write, given):
        return reason
    weight: Any = constant_of(write.program, given["weight"])
    weight = weight.detach()
    rows, columns = weight.shape[-2:]
    height = write.node.meta["val"].shape[-2]
    padding = _pair(given["padding"])
    parts = []
    for start in range(0, rows, _MOST_TAPS // columns):
        strip = weight[:, :, start : start + _MOST_TAPS // columns].clone()
        part = write.constant(f"strip_{start}_of_{given['weight'].name}", strip)
        bias = given["bias"] if start == 0 else None
        made = write(
            _aten.conv2d.default, given["input"], part, bias, [1, 1], padding, [1, 1],
            given["groups"],
        )  # fmt: skip
        made = write(_aten.slice.Tensor, made, 2, start, start + height)
        parts.append(made)
    return reduce(lambda total, part: write(_aten.add.Tensor, total, part), parts)


# Of a window's row y and column x, and those of a pixel in it: (n, c, y, dy, x, dx) becomes
# (n, c, dy, dx, y, x), and the other way round.
_APART, _TOGETHER = [0, 1, 3, 5, 2, 4], [0, 1, 4, 2, 5, 3]


def patches_as_views(program: Program, log: RewriteLog) -> None:
    """Replaces every unfold and fold of known sizes whose windows stand side by side; in place."""
    replace_nodes(program, log, {_aten.im2col.default: _patches, _aten.col2im.default: _patches})


def _patches(write: Writer, given: dict[str, Any]) -> torch.fx.Node | str:
    unfolds = write.node.target is _aten.im2col.default
    image = (given["self"] if unfolds else write.node).meta["val"]
    sizes = fixed_sizes(image.shape)
    if image.dim() != 4 or None in sizes or not _are_side_by_side(given, sizes):
        return "its windows overlap or leave pixels out, or its sizes are dynamic"
    (n, c, height, width), (down, across) = sizes, _pair(given["kernel_size"])
    rows, columns = height // down, width // across
    if unfolds:  # (n, c, h, w) to (n, c * pixels of a window, windows)
        parts, order = [n, c, rows, down, columns, across], _APART
        shape = [n, c * down * across, rows * columns]
    else:
        parts, order, shape = [n, c, down, across, rows, columns], _TOGETHER, sizes
    apart = write(_aten.reshape.default, given["self"], parts)
    return write(_aten.reshape.default, write(_aten.permute.default, apart, order), shape)


def _are_side_by_side(given: dict[str, Any], sizes: list[Any]) -> bool:
    kernel = _pair(given["kernel_size"])
    return (
        _pair(given["stride"]) == kernel
        and not any(given["padding"])
        and set(given["dilation"]) == {1}
        and not any(size % width for size, width in zip(sizes[2:], kernel, strict=True))
    )


_UPSAMPLINGS = (_aten.upsample_nearest2d.vec, _aten.upsample_nearest2d.default)


def upsampling_by_ones(program: Program, log: RewriteLog) -> None:
    """Replaces every such upsampling of 32-bit floats; in place."""
    replace_nodes(program, log, dict.fromkeys(_UPSAMPLINGS, _upsampled))


def _upsampled(write: Writer, given: dict[str, Any]) -> torch.fx.Node | str:
    x = given["input" if "input" in given else "self"]
    factors = _factors(x.meta["val"], write.node.meta["val"])
    if factors is None:
        return "its factors are not whole numbers, or its sizes are dynamic"
    n, c, height, width = x.meta["val"].shape
    down, across = factors
    ones = write.constant(f"ones_{down}_{across}", torch.ones(1, 1, 1, down, 1, across))
    apart = write(_aten.reshape.default, x, [n, c, height, 1, width, 1])
    repeated = write(_aten.mul.Tensor, apart, ones)
    return write(_aten.reshape.default, repeated, [n, c, height * down, width * across])


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


# Images that come by pixel (NHWC), as XNNPACK computes: a program for images by channel begins with
# a transposition of each. Whoever gives the inputs has to put their values in this order. The
# runner does, from the order in which files have them; it is not part of an inference's time.
_DIMENSIONS = 4


def inputs_by_pixel(inputs: ExampleInputs, log: RewriteLog) -> ExampleInputs:
    """Example inputs with the same values; images in another order."""

    def ordered(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or leaf.dim() != _DIMENSIONS:
            return leaf
        if not leaf.is_floating_point():
            return leaf
        made = leaf.contiguous(memory_format=torch.channels_last)
        if made.stride() != leaf.stride():
            log.applied()
        return made

    args, keywords = torch.utils._pytree.tree_map(ordered, (inputs.args, dict(inputs.keywords)))
    return ExampleInputs(args, keywords)


def order_notes(
    module: torch.nn.Module, given: ExampleInputs, taken: ExampleInputs, offered: tuple[str, ...]
) -> Iterator[str]:
    """Sentences about example inputs whose values are not in the order of their dimensions."""
    pairs = zip(
        leaves(by_parameter(module, given)), leaves(by_parameter(module, taken)), strict=True
    )
    for (path, before), (_, after) in pairs:
        name = dotted(path, "input")
        if is_by_pixel(after):
            yield (
                f"The program takes {name} by pixel (NHWC), as the example input lies in memory "
                f"(channels_last); its callers have to pass the values in that order. Return "
                f"{name}.contiguous() from the factory for a program that takes it by channel."
            )
        elif isinstance(before, torch.Tensor) and _is_permuted(before):
            images = CHANNELS_LAST in offered and before.dim() == _DIMENSIONS
            option = " (by pixel: --set export.rewrites=[auto,channels_last])" if images else ""
            yield (
                f"The example input {name} is a permuted view with the strides "
                f"{list(before.stride())}; the program takes its values in the order of its "
                f"shape, {list(before.shape)}{option}."
            )


def _is_permuted(tensor: torch.Tensor) -> bool:
    """Whether memory has the values in another order than the shape; broadcast ones have none."""
    strides = [s for s, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1 and s]
    return strides != sorted(strides, reverse=True)
