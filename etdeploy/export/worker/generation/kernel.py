"""Operators of etdeploy's own, whose kernels the runner has.

The attention reads keys and values where they are in the cache, up to the position of each token.
The kernels are in templates/runner/kernels; what is here computes the same eagerly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Seen:
    """What tokens see, in place of a mask.

    Attributes:
        positions: Of the tokens, int64 of shape (S,); one follows the other.
        window: How many positions a token sees, itself the last; 0 for all.
    """

    positions: torch.Tensor
    window: int


def attention(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    seen: Seen,
    scale: float,
    softcap: float,
) -> torch.Tensor:
    """Calls the operator.

    Args:
        query: Of shape (1, heads, S, d).
        keys: Of shape (key heads, N, d); a position is at its remainder by N.
        values: Of shape (key heads, N, e).
        seen: By each token.
        scale: Of the scores.
        softcap: Their bound; 0 for none.

    Returns:
        Of shape (1, S, heads, e).
    """
    return ATTENTION(query, keys, values, seen.positions, seen.window, scale, softcap)


def _computed(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    positions: torch.Tensor,
    window: int,
    scale: float,
    softcap: float,
) -> torch.Tensor:
    _, heads, length, size = query.shape
    queries = (query * scale).reshape(keys.shape[0], -1, size)
    scores = torch.bmm(queries, keys.transpose(1, 2)).reshape(heads, length, keys.shape[1])
    if softcap:
        scores = torch.tanh(scores / softcap) * softcap
    hidden = ~_visible(positions, keys.shape[1], window)
    weights = torch.softmax(scores.masked_fill(hidden, -torch.inf), dim=-1)
    out = torch.bmm(weights.reshape(keys.shape[0], -1, keys.shape[1]), values)
    return out.reshape(1, heads, length, values.shape[2]).transpose(1, 2).contiguous()


def _visible(positions: torch.Tensor, places: int, window: int) -> torch.Tensor:
    """Which places each token sees, of shape (S, N)."""
    last = positions[-1]
    held = last - (last - torch.arange(places)) % places
    behind = positions.unsqueeze(1) - held
    visible = (held >= 0) & (behind >= 0)
    return visible & (behind < window) if window else visible


def _shape(query: torch.Tensor, _: torch.Tensor, values: torch.Tensor, *__: Any) -> torch.Tensor:
    return query.new_empty((1, query.shape[2], query.shape[1], values.shape[2]))


def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """The rotary embedding of x, of shape ([1,] heads, S, d), by angles of shape (1, S, d)."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


def _register(
    name: str, arguments: str, computed: Callable[..., torch.Tensor], fake: Callable[..., Any]
) -> Any:
    """Registers an operator that gives a tensor, and its variant with an output argument."""

    def computed_into(*given: Any, out: torch.Tensor) -> torch.Tensor:
        return out.copy_(computed(*given))

    torch.library.define(name, f"({arguments}) -> Tensor")
    torch.library.define(f"{name}.out", f"({arguments}, *, Tensor(a!) out) -> Tensor(a!)")
    torch.library.impl(name, "CompositeExplicitAutograd")(computed)
    torch.library.impl(f"{name}.out", "CompositeExplicitAutograd")(computed_into)
    torch.library.register_fake(name)(fake)
    namespace, _, own = name.partition("::")
    return getattr(getattr(torch.ops, namespace), own).default


ATTENTION = _register(
    "etdeploy::attention",
    "Tensor query, Tensor keys, Tensor values, Tensor positions, int window, float scale, "
    "float softcap",
    _computed,
    _shape,
)
ROTATE = _register(
    "etdeploy::rotate",
    "Tensor x, Tensor cos, Tensor sin",
    _rotated,
    lambda x, *_: x.new_empty(x.shape),
)
