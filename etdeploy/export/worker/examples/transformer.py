"""A small causal decoder of today's usual shape: RMSNorm, rotary positions, SwiGLU."""

# torch is not followed by mypy, so its classes are Any.
# mypy: allow-subclassing-any

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from etdeploy.export.worker.examples.attention import attend, merge_heads, split_heads
from etdeploy.export.worker.examples.base import (
    Example,
    check_divides,
    check_positive,
    make_example,
    random_tokens,
)

_ROTARY_BASE = 10_000.0
_NORM_EPSILON = 1e-5
_MASKED = -100.0


def transformer(
    *,
    vocabulary: int = 8192,
    width: int = 256,
    layers: int = 4,
    heads: int = 4,
    tokens: int = 64,
    batch: int = 1,
) -> Example:
    """`[batch, tokens]` int64 token ids to `[batch, tokens, vocabulary]` logits."""
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
    # Rotary positions turn pairs of elements of each head.
    check_divides("twice the heads", 2 * heads, "width", width)
    module = _Decoder(vocabulary, width, layers, heads, tokens)
    return make_example(module, lambda: (random_tokens(vocabulary, (batch, tokens)),))


class _Decoder(nn.Module):
    """Embedding, decoder layers, norm, and the projection to logits."""

    def __init__(self, vocabulary: int, width: int, layers: int, heads: int, tokens: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.Sequential(*(_DecoderLayer(width, heads, tokens) for _ in range(layers)))
        self.norm = _RmsNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.norm(self.layers(self.embedding(ids))))
        return logits


class _DecoderLayer(nn.Module):
    """Causal self-attention and a gated feed-forward part, each added to its input."""

    def __init__(self, width: int, heads: int, tokens: int) -> None:
        super().__init__()
        self.attention_norm = _RmsNorm(width)
        self.attention = _DecoderAttention(width, heads, tokens)
        self.feed_norm = _RmsNorm(width)
        self.feed = _SwiGlu(width, 3 * width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed(self.feed_norm(x))


class _DecoderAttention(nn.Module):
    """Multi-head attention to the past, with rotary positions."""

    cosine: torch.Tensor
    sine: torch.Tensor
    mask: torch.Tensor

    def __init__(self, width: int, heads: int, tokens: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        cosine, sine = _rotary_tables(width // heads, tokens)
        self.register_buffer("cosine", cosine, persistent=False)
        self.register_buffer("sine", sine, persistent=False)
        self.register_buffer("mask", _causal_mask(tokens), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            split_heads(layer(x), self.heads) for layer in (self.query, self.key, self.value)
        )
        mixed = attend(self._rotated(query), self._rotated(key), value, self.mask)
        out: torch.Tensor = self.out(merge_heads(mixed))
        return out

    def _rotated(self, x: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, dim=-1)
        return x * self.cosine + torch.cat((-second, first), dim=-1) * self.sine


class _RmsNorm(nn.Module):
    """Scales each vector to a root mean square of one (arXiv 1910.07467)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean_square = (x * x).mean(-1, keepdim=True)
        return x * torch.rsqrt(mean_square + _NORM_EPSILON) * self.weight


class _SwiGlu(nn.Module):
    """A feed-forward part with a SiLU gate (arXiv 2002.05202)."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.down(functional.silu(self.gate(x)) * self.up(x))
        return out


def _rotary_tables(head_width: int, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines of each position's rotation, `[tokens, head_width]` (arXiv 2104.09864)."""
    exponents = torch.arange(0, head_width, 2) / head_width
    angles = torch.outer(torch.arange(tokens).float(), _ROTARY_BASE**-exponents)
    both_halves = torch.cat((angles, angles), dim=-1)
    return both_halves.cos(), both_halves.sin()


def _causal_mask(tokens: int) -> torch.Tensor:
    """Zero for the past and itself, a large negative number for the future, `[tokens, tokens]`.

    Not minus infinity: a static quantiser takes the range of every tensor that it sees.
    """
    return torch.full((tokens, tokens), _MASKED).triu(1)
