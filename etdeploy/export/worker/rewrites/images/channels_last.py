"""Images that come by pixel (NHWC) and not by channel (NCHW), which is how XNNPACK computes.

A program for images by channel begins with a transposition of each. This changes the program's
inputs: whoever gives them has to put their values in this order. The runner does, from the order in
which files have them; it is not part of an inference's time.
"""

from __future__ import annotations

from typing import Any

import torch

from etdeploy.export.worker.rewrites.base import Told
from etdeploy.export.worker.tracing.structure import Call

_DIMENSIONS = 4


def inputs_by_pixel(inputs: Call, told: Told) -> Call:
    """Example inputs with the same values; images in another order."""

    def ordered(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or leaf.dim() != _DIMENSIONS:
            return leaf
        if not leaf.is_floating_point():
            return leaf
        made = leaf.contiguous(memory_format=torch.channels_last)
        if made.stride() != leaf.stride():
            told.applied()
        return made

    args, keywords = torch.utils._pytree.tree_map(ordered, (inputs.args, dict(inputs.keywords)))
    return Call(args, keywords)
