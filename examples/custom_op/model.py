"""A model that calls an operator of one's own: the feed-forward block of a language model.

etdeploy run --recipe examples/custom_op/recipe.yaml
"""

import torch
from torch import nn


class RmsNorm(nn.Module):  # type: ignore[misc]
    """`torch.nn.RMSNorm` as one operator: ExecuTorch has none, and would run six in its place."""

    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # ops.py has registered it: it is run before this file.
        normed: torch.Tensor = torch.ops.fused.rms_norm(x, self.weight, self.eps)
        return normed


class FeedForward(nn.Module):  # type: ignore[misc]
    """`[batch, tokens, width]` to the same shape, with the input added to the result."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = RmsNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = x + self.down(nn.functional.silu(self.up(self.norm(x))))
        return y


def make(width: int = 256, layers: int = 2) -> tuple[nn.Module, tuple[torch.Tensor]]:
    """What the recipe names: the module, and a tuple of example inputs."""
    blocks = nn.Sequential(*(FeedForward(width) for _ in range(layers)))
    for block in blocks:
        nn.init.uniform_(block.norm.weight, 0.5, 1.5)
    return blocks, (torch.randn(1, 32, width),)
