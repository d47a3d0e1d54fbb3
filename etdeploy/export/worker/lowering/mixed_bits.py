"""Chooses which linear layers get 8 bits instead of 4, within a limit of bits per weight.

A layer counts by the KL divergence that rounding its weight causes. For small changes, that is half
their quadratic form with the Fisher information, the mean outer product of gradients of
-log(probability) for tokens drawn from the model's own distribution (Martens,
https://arxiv.org/abs/1412.1193, section 5). One backward pass gives the gradients of all layers'
outputs. Of each output, its error times its gradient is summed over the tokens, since errors that
many tokens see through attention add up, and squared. Errors of different outputs are rounded
independently, so products of theirs are left out, and the mean over outputs replaces one over many
draws.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from etdeploy.backends.schemes import bits_in_groups
from etdeploy.export.worker.lowering.scales import (
    Activations,
    quantized_in_groups,
)

_BITS_OF_OUTPUT_SCALE = 32


@dataclass(frozen=True)
class RoundingCandidate:
    """A linear layer that gets 4 or 8 bits.

    Attributes:
        weights: How many it has.
        divergence: The KL divergence per token that rounding to 4 bits causes, in nats; estimated.
        bits, more_bits: Per weight with its part of a scale: in 4 bits, and in 8.
    """

    name: str
    weights: int
    divergence: float
    bits: float
    more_bits: float

    @property
    def added_bits(self) -> float:
        """What 8 bits add to the size of all its weights."""
        return self.weights * (self.more_bits - self.bits)


@dataclass(frozen=True)
class MixedBits:
    """What was chosen.

    Attributes:
        finer: The names of the layers with 8 bits.
        mean_bits: Per weight, with scales.
    """

    finer: frozenset[str]
    mean_bits: float


def candidate(
    name: str, layer: torch.nn.Linear, group_size: int, divergence: float
) -> RoundingCandidate:
    """A layer of this group size."""
    more_bits = 8 + _BITS_OF_OUTPUT_SCALE / layer.in_features
    return RoundingCandidate(
        name, layer.weight.numel(), divergence, bits_in_groups(group_size), more_bits
    )


def choose(candidates: Sequence[RoundingCandidate], target_bits: float) -> MixedBits:
    """Give 8 bits to the layers that gain most per added bit, up to a mean of `target_bits`."""
    weights = sum(each.weights for each in candidates)
    used = sum(each.weights * each.bits for each in candidates)
    finer: set[str] = set()
    for each in sorted(candidates, key=lambda c: (-c.divergence / c.added_bits, c.name)):
        if each.divergence > 0 and used + each.added_bits <= target_bits * weights:
            used += each.added_bits
            finer.add(each.name)
    return MixedBits(frozenset(finer), used / weights)


def divergences(
    group_sizes: Mapping[torch.nn.Linear, int], activations: Activations
) -> dict[torch.nn.Linear, float]:
    """The KL divergence per token that 4 bits in each layer alone cause, in nats; estimated.

    A layer that the model does not call with the text has none.
    """
    if activations.gradients is None:
        raise ValueError("nothing gives gradients")
    found: dict[torch.nn.Linear, float] = {}

    def seen(layer: torch.nn.Linear, inputs: torch.Tensor, gradients: torch.Tensor) -> None:
        squares = activations.mean_squares.get(id(layer))
        rounded: Any = quantized_in_groups(layer.weight, group_sizes[layer], squares, coarse=True)
        error = inputs @ (rounded.dequantize() - layer.weight.detach().float()).T
        found[layer] = found.get(layer, 0.0) + float((error * gradients).sum(0).square().sum()) / 2

    tokens = activations.gradients(group_sizes.keys(), seen)
    return {layer: total / tokens for layer, total in found.items()}


def by_role(finer: Collection[str], candidates: Sequence[RoundingCandidate]) -> str:
    """Summarize the choice by the layers' last names: `v_proj (20 of 30)`."""
    roles: dict[str, list[bool]] = {}
    for each in candidates:
        roles.setdefault(each.name.rpartition(".")[2], []).append(each.name in finer)
    return ", ".join(
        f"{role} ({sum(chosen)} of {len(chosen)})"
        for role, chosen in sorted(roles.items(), key=lambda item: -sum(item[1]))
        if any(chosen)
    )
