"""A multi-layer perceptron."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn

from etdeploy.export.worker.examples.base import Example, check_positive, make_example


def mlp(
    *, features: int = 256, width: int = 1024, layers: int = 4, classes: int = 10, batch: int = 1
) -> Example:
    """Linear layers with ReLU: `[batch, features]` floats to `[batch, classes]` scores."""
    check_positive(
        {
            "features": features,
            "width": width,
            "layers": layers,
            "classes": classes,
            "batch": batch,
        }
    )
    sizes = [features] + [width] * layers
    stack: list[nn.Module] = []
    for before, after in pairwise(sizes):
        linear = nn.Linear(before, after)
        # Keeps the scale of activations through ReLU (He et al., arXiv 1502.01852).
        nn.init.kaiming_normal_(linear.weight, nonlinearity="relu")
        stack += [linear, nn.ReLU()]
    stack.append(nn.Linear(width, classes))
    return make_example(nn.Sequential(*stack), lambda: (torch.randn(batch, features),))
