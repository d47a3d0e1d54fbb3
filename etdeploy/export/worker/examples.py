"""Bundled models with real layers and random weights."""

# torch is not followed by mypy, so its classes are Any.
# mypy: allow-subclassing-any

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn import functional

CALIBRATION_SAMPLES = 8


@dataclass(frozen=True)
class Example:
    """A bundled model with random weights; `sample` draws one more set of inputs."""

    module: torch.nn.Module
    inputs: tuple[torch.Tensor, ...]
    sample: Callable[[], tuple[torch.Tensor, ...]]

    def calibration(self) -> Iterator[tuple[torch.Tensor, ...]]:
        """Inputs to find the ranges of activations with: the example's own and fresh ones."""
        yield self.inputs
        for _ in range(CALIBRATION_SAMPLES - 1):
            yield self.sample()


def make_example(
    module: torch.nn.Module, sample: Callable[[], tuple[torch.Tensor, ...]]
) -> Example:
    """An example whose inputs are one draw of `sample`."""
    return Example(module, sample(), sample)


def check_positive(**arguments: Any) -> None:
    """Raises ValueError unless every argument is a whole number above zero."""
    for name, value in arguments.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{name} must be a whole number above zero, not {value!r}")


def check_divides(small: str, small_value: int, large: str, large_value: int) -> None:
    """Raises ValueError unless `small_value` divides `large_value`."""
    if large_value % small_value:
        raise ValueError(f"{large} ({large_value}) must be a multiple of {small} ({small_value})")


def random_tokens(vocabulary: int, shape: tuple[int, ...]) -> torch.Tensor:
    """Token ids below `vocabulary`, int64."""
    return torch.randint(vocabulary, shape)


def split_heads(x: torch.Tensor, heads: int) -> torch.Tensor:
    """`[batch, tokens, width]` to `[batch, heads, tokens, width / heads]`."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def merge_heads(x: torch.Tensor) -> torch.Tensor:
    """`[batch, heads, tokens, head_width]` to `[batch, tokens, heads * head_width]`."""
    return x.transpose(1, 2).flatten(2)


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None = None
) -> torch.Tensor:
    """Attention of `[batch, heads, tokens, head_width]` tensors, with a mask that is added.

    Written out, because torch.export decomposes `scaled_dot_product_attention` into a softmax
    that guards against rows of minus infinity: ten more operators in each layer, which XNNPACK
    does not take.
    """
    scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-2, -1)
    if mask is not None:
        scores = scores + mask
    return torch.softmax(scores, dim=-1) @ value


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
        vocabulary=vocabulary, width=width, layers=layers, heads=heads, tokens=tokens, batch=batch
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


# Output channels in units of `width`, and stride, of each depthwise-separable block: the table of
# MobileNet v1 (Howard et al., arXiv 1704.04861) with its run of equal blocks shortened.
_BLOCKS = ((2, 1), (4, 2), (4, 1), (8, 2), (8, 1), (16, 2), (16, 1), (16, 1), (32, 2), (32, 1))


def convnet(*, width: int = 32, image: int = 128, classes: int = 100, batch: int = 1) -> Example:
    """`[batch, 3, image, image]` floats to `[batch, classes]` scores."""
    check_positive(width=width, image=image, classes=classes, batch=batch)
    layers: list[nn.Module] = [_conv_unit(3, width, kernel=3, stride=2)]
    channels = width
    for factor, stride in _BLOCKS:
        layers.append(_separable(channels, factor * width, stride))
        channels = factor * width
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)]
    module = nn.Sequential(*layers)
    _spread_statistics(module)
    return make_example(module, lambda: (torch.randn(batch, 3, image, image),))


def _conv_unit(
    channels: int, out: int, *, kernel: int, stride: int = 1, groups: int = 1
) -> nn.Sequential:
    conv = nn.Conv2d(channels, out, kernel, stride, padding=kernel // 2, groups=groups, bias=False)
    nn.init.kaiming_normal_(conv.weight, mode="fan_in", nonlinearity="relu")
    return nn.Sequential(conv, nn.BatchNorm2d(out), nn.ReLU6())


def _separable(channels: int, out: int, stride: int) -> nn.Sequential:
    return nn.Sequential(
        _conv_unit(channels, channels, kernel=3, stride=stride, groups=channels),
        _conv_unit(channels, out, kernel=1),
    )


def _spread_statistics(module: nn.Module) -> None:
    """Gives batch norms the statistics of a trained net: near the identity, but not equal to it."""
    for norm in module.modules():
        if isinstance(norm, nn.BatchNorm2d) and norm.running_mean is not None:
            nn.init.normal_(norm.running_mean, 0.0, 0.1)
            nn.init.uniform_(norm.running_var, 0.8, 1.2)
            nn.init.uniform_(norm.weight, 0.8, 1.2)
            nn.init.normal_(norm.bias, 0.0, 0.1)


def mlp(
    *, features: int = 256, width: int = 1024, layers: int = 4, classes: int = 10, batch: int = 1
) -> Example:
    """Linear layers with ReLU: `[batch, features]` floats to `[batch, classes]` scores."""
    check_positive(features=features, width=width, layers=layers, classes=classes, batch=batch)
    sizes = [features] + [width] * layers
    stack: list[nn.Module] = []
    for before, after in pairwise(sizes):
        linear = nn.Linear(before, after)
        # Keeps the scale of activations through ReLU (He et al., arXiv 1502.01852).
        nn.init.kaiming_normal_(linear.weight, nonlinearity="relu")
        stack += [linear, nn.ReLU()]
    stack.append(nn.Linear(width, classes))
    return make_example(nn.Sequential(*stack), lambda: (torch.randn(batch, features),))


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
        vocabulary=vocabulary, width=width, layers=layers, heads=heads, tokens=tokens, batch=batch
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

    Not minus infinity: a static quantizer takes the range of every tensor that it sees.
    """
    return torch.full((tokens, tokens), _MASKED).triu(1)


EXAMPLES: dict[str, Callable[..., Example]] = {
    "mlp": mlp,
    "convnet": convnet,
    "encoder": encoder,
    "transformer": transformer,
}
