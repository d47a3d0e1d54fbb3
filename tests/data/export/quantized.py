"""Small models with calibration inputs that fit them, and with others."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

Inputs = tuple[torch.Tensor, ...]


def pixels() -> torch.Tensor:
    return torch.rand(1, 3, 8, 8)


def image() -> tuple[nn.Module, Inputs]:
    """Takes pixels from -1 to 1; gives a number for each of four classes, and the largest one."""
    layers = (nn.Conv2d(3, 8, 3), nn.PReLU(8), nn.Conv2d(8, 8, 3), nn.PReLU(8))
    return Classes(nn.Sequential(*layers, nn.Flatten(), nn.Linear(128, 4))), (2 * pixels() - 1,)


class Classes(nn.Module):  # type: ignore[misc]
    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        scores = self.layers(x)
        return {"scores": scores, "best": scores.argmax(dim=1)}


def lengths() -> tuple[nn.Module, Inputs, object]:
    return nn.Linear(4, 4), (torch.randn(2, 4),), ({0: torch.export.Dim("rows", min=1, max=8)},)


def conv1d() -> tuple[nn.Module, Inputs]:
    return nn.Conv1d(4, 8, 3), (torch.randn(1, 4, 16),)


class Cell(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(8, 8)

    def forward(self, x: torch.Tensor, h: torch.Tensor, c: torch.Tensor) -> Inputs:
        return tuple(self.cell(x, (h, c)))


def cell() -> tuple[nn.Module, Inputs]:
    return Cell(), (torch.randn(1, 8), torch.randn(1, 8), torch.randn(1, 8))


def partly() -> tuple[nn.Module, Inputs]:
    return nn.Sequential(nn.Conv1d(4, 8, 3), nn.Linear(14, 8)), (torch.randn(1, 4, 16),)


# --- calibration inputs of `image`


def fitting() -> Iterator[Inputs]:
    yield from ((2 * pixels() - 1,) for _ in range(8))


def bytes_of_pixels() -> Iterator[Inputs]:
    yield from ((255 * pixels(),) for _ in range(8))


def zeros() -> Iterator[Inputs]:
    yield (torch.zeros(1, 3, 8, 8),)


def undefined() -> Iterator[Inputs]:
    yield (pixels(),)
    yield (torch.full((1, 3, 8, 8), float("nan")),)


def infinite() -> Iterator[Inputs]:
    yield (torch.full((1, 3, 8, 8), float("inf")),)


def empty() -> Iterator[Inputs]:
    yield (torch.zeros(0, 3, 8, 8),)


def other_shape() -> Iterator[Inputs]:
    yield (torch.zeros(1, 8, 8, 3),)


def other_type() -> Iterator[Inputs]:
    yield (torch.zeros(1, 3, 8, 8, dtype=torch.uint8),)


def array() -> Iterator[object]:
    yield (pixels().numpy(),)


def two() -> Iterator[Inputs]:
    yield (pixels(), pixels())


def too_long() -> Iterator[Inputs]:
    """Of `lengths`."""
    yield (torch.zeros(4, 4),)
    yield (torch.zeros(0, 4),)


def dark() -> tuple[nn.Module, Inputs]:
    module, _ = image()
    return module, (torch.zeros(1, 3, 8, 8),)


def undefined_example() -> tuple[nn.Module, Inputs]:
    return nn.Linear(4, 4), (torch.full((1, 4), float("nan")),)


class Positions(nn.Module):  # type: ignore[misc]
    """Computes the positions of words as RoBERTa does: only words count, and padding is 1."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(8, 16)
        self.positions = nn.Embedding(16, 16)
        self.linear = nn.Linear(16, 4)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        counts = tokens.ne(1).int()
        places = ((torch.cumsum(counts, dim=1).type_as(counts) + 0) * counts).long() + 1
        return self.linear(2 * self.words(tokens) + self.positions(places))


def positions() -> tuple[nn.Module, Inputs]:
    torch.manual_seed(0)
    return Positions().eval(), (torch.tensor([[0, 5, 6, 1, 1]]),)
