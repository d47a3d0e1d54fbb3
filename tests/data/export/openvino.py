"""Factories of models that OpenVINO's delegate runs, or cannot run."""

from typing import Any

import torch
from torch import nn


class Scaled(nn.Module):  # type: ignore[misc]
    """Gives several outputs of several types, and takes inputs by keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4)

    def forward(
        self, x: torch.Tensor, *, scale: torch.Tensor, ids: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        return {"scaled": self.linear(x) * scale, "next": ids + 1, "positive": x > 0}


def _scaled(scale: torch.Tensor) -> Any:
    return Scaled(), (torch.randn(2, 8),), {"scale": scale, "ids": torch.arange(2)}, None


def keywords() -> Any:
    """By keyword, with int64 and bool outputs."""
    return _scaled(torch.full((1,), 2.0))


def single() -> Any:
    """With an input that has no dimension."""
    return _scaled(torch.tensor(2.0))


def dynamic() -> Any:
    """With a dynamic batch."""
    batch = torch.export.Dim("batch", min=1, max=8)
    return nn.Linear(8, 4), (torch.randn(2, 8),), ({0: batch},)
