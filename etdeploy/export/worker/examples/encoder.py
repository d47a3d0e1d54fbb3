"""A transformer encoder, as text classifiers and embedding models use."""

# torch is not followed by mypy, so its classes are Any.
# mypy: allow-subclassing-any

from __future__ import annotations

import torch
from torch import nn

from etdeploy.export.worker.examples.attention import attend, merge_heads, split_heads
from etdeploy.export.worker.examples.base import (
    Example,
    check_divides,
    check_positive,
    make_example,
    random_tokens,
)


def encoder(
    *,
    vocabulary: int = 8192,
    width: int = 256,
    layers: int = 4,
    heads: int = 4,
    tokens: int = 128,
    batch: int = 1,
) -> Example:
    """`[batch, tokens]` int64 token ids to `[batch, tokens, width]` features."""
    check_positive(
        {
            "vocabulary": vocabulary,
            "width": width,
            "layers": layers,
            "heads": heads,
            "tokens": tokens,
            "batch": batch,
        }
    )
    check_divides("heads", heads, "width", width)
    module = _Encoder(vocabulary, width, layers, heads, tokens)
    return make_example(module, lambda: (random_tokens(vocabulary, (batch, tokens)),))


class _Encoder(nn.Module):
    """Token and position embeddings, then pre-norm layers."""

    def __init__(self, vocabulary: int, width: int, layers: int, heads: int, tokens: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(0.1 * torch.randn(tokens, width))
        self.layers = nn.Sequential(*(_EncoderLayer(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        features: torch.Tensor = self.norm(self.layers(self.embedding(ids) + self.position))
        return features


class _EncoderLayer(nn.Module):
    """Self-attention and a feed-forward part, each added to its input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = _EncoderAttention(width, heads)
        self.feed_norm = nn.LayerNorm(width)
        self.feed = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed(self.feed_norm(x))


class _EncoderAttention(nn.Module):
    """Multi-head attention over the whole sequence."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            split_heads(layer(x), self.heads) for layer in (self.query, self.key, self.value)
        )
        out: torch.Tensor = self.out(merge_heads(attend(query, key, value)))
        return out
