"""Scaled dot-product attention in the form that suits the backends best."""

from __future__ import annotations

import torch


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
