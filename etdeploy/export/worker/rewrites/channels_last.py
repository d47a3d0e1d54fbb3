"""Images that come by pixel (NHWC) and not by channel (NCHW), which is how XNNPACK computes.

A program for images by channel begins with a transposition of each. This changes the program's
inputs: whoever gives them has to put their values in this order. The runner does, from the order in
which files have them; it is not part of an inference's time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from etdeploy.backends.rewrites import CHANNELS_LAST
from etdeploy.export.worker.rewrites.base import RewriteLog
from etdeploy.export.worker.tracing.structure import ExampleInputs, by_parameter, dotted, leaves
from etdeploy.export.worker.tracing.tensors import is_by_pixel

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
