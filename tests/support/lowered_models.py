"""Models with the operators that XNNPACK's passes are for; factories of recipes."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

Made = tuple[nn.Module, tuple[torch.Tensor, ...]]


class Images(nn.Module):  # type: ignore[misc]
    """Batch norms after convolutions and alone, a pad, PReLU, five tensors in one, upsampling."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.normed = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
        self.alone, self.prelu = nn.BatchNorm2d(8), nn.PReLU(8)
        self.last, self.classes = nn.Conv2d(40, 16, 1), nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores of an image."""
        x = functional.relu(self.normed(self.first(functional.pad(x, (1, 1, 1, 1)))))
        x = self.alone(functional.max_pool2d(x, 2)) + 1
        x = self.prelu(functional.interpolate(x, scale_factor=2, mode="bilinear"))
        x = self.last(torch.cat([x, x * 2, x * 3, x * 4, x * 5], 1))
        return self.classes(x.mean((2, 3)))


class Signals(nn.Module):  # type: ignore[misc]
    """Convolutions of signals, attention and norms of layers."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(4, 32, 3, padding=1)
        self.layer = nn.TransformerEncoderLayer(32, 2, 64, batch_first=True, norm_first=True)
        self.classes = nn.Linear(32, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores of a signal."""
        x = self.layer(functional.silu(self.convolution(x)).transpose(1, 2))
        return self.classes(x)


def images() -> Made:
    """Of 16 x 16 pixels."""
    return Images().eval(), (torch.randn(1, 3, 16, 16),)


def signals() -> Made:
    """Of 12 steps."""
    return Signals().eval(), (torch.randn(1, 4, 12),)


class Normed(nn.Module):  # type: ignore[misc]
    """Batch norms of signals and of rows, without a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.signals, self.rows, self.last = nn.BatchNorm1d(8), nn.BatchNorm1d(8), nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Of a signal, and of one step of it."""
        return self.last(self.signals(x)), self.rows(x[:, :, 0])


def normed() -> Made:
    """Of 6 steps."""
    return Normed().eval(), (torch.randn(2, 8, 6),)
