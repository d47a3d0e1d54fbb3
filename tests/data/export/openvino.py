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


class Observed(nn.Module):  # type: ignore[misc]
    """Lists, indices, booleans, one dimension and an LSTM: NNCF wants observers at all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.rnn = nn.Embedding(9, 8), nn.LSTM(8, 6, batch_first=True)
        self.queries, self.last = nn.Linear(6, 18), nn.Linear(6, 4)
        self.scale = nn.Parameter(torch.ones(6))

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x, _ = self.rnn(self.table(ids))
        q, k, v = self.queries(x * self.scale).chunk(3, -1)
        hidden = mask[:, None, :].bool().expand(-1, ids.shape[1], -1)
        x = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=hidden)
        values, places = x.topk(2, -1)
        return self.last(torch.cat([values, x[..., 2:]], -1)), places


def observed() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return Observed(), (torch.randint(0, 9, (1, 5)), torch.ones(1, 5, dtype=torch.long))
