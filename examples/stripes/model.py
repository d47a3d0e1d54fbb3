"""A model of your own: tells which way the stripes of a small picture run.

etdeploy run --recipe examples/stripes/recipe.yaml
"""

import math
from collections.abc import Iterator

import torch
from torch import nn

SIDE = 32
DIRECTIONS = 8


class Stripes(nn.Module):  # type: ignore[misc]
    """`[batch, 1, 32, 32]` pictures to `[batch, 8]` scores, one for each direction."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, channels, 7, stride=2, padding=3),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, 2 * channels, 3, stride=2, padding=1),
            nn.BatchNorm2d(2 * channels),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        self.scores = nn.Linear(2 * channels, DIRECTIONS)

    def forward(self, picture: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.scores(self.features(picture))
        return scores


def make(channels: int = 16) -> tuple[nn.Module, tuple[torch.Tensor]]:
    """What a recipe names: the module, and a tuple of example inputs.

    A third value, where there is one, gives the dynamic shapes as torch.export takes them.
    """
    return Stripes(channels), (picture(direction=0),)


def samples() -> Iterator[tuple[torch.Tensor]]:
    """Calibration inputs for static quantization: pictures as the model will see them."""
    for direction in range(DIRECTIONS):
        yield (picture(direction),)


def picture(direction: int) -> torch.Tensor:
    """Stripes of a direction, with noise."""
    angle = math.pi * direction / DIRECTIONS
    down, right = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    wave = torch.sin(math.cos(angle) * right + math.sin(angle) * down)
    return (wave + 0.1 * torch.randn(SIDE, SIDE)).reshape(1, 1, SIDE, SIDE)
