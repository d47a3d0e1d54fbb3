"""A model with an operator that has two results."""

import torch


class Bounds(torch.nn.Module):  # type: ignore[misc]
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        low, high = torch.ops.bounds.of(x, [0, 1], 0.5, True, "cm")
        low2, high2 = torch.ops.bounds.of(x, [0, 1], None, False, "")
        return low, high, high2 - low2


def make() -> tuple[torch.nn.Module, tuple[torch.Tensor]]:
    return Bounds(), (torch.randn(4, 5),)
