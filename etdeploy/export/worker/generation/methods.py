"""The methods of a program that generates text, as modules and as the runner is told of them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import torch

from etdeploy.export.worker.generation.cache import Buffers, bounds_of
from etdeploy.export.worker.loading.source import MethodSource
from etdeploy.export.worker.tracing.structure import ExampleInputs
from etdeploy.program.generation import Attention, GenerationMethod


class CachePrefixMethod(torch.nn.Module):  # type: ignore[misc]
    """A method that looks at the first positions of the cache."""

    def __init__(self, model: Any, cache: Buffers, prefix: int, *, batched: bool) -> None:
        super().__init__()
        self.model, self.cache, self.prefix, self.batched = model, cache, prefix, batched
        takes = inspect.signature(model.forward).parameters
        self.options = {"logits_to_keep": 1} if "logits_to_keep" in takes else {}

    def forward(self, tokens: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        """The logits of the last token."""
        length = tokens.shape[1]
        positions = position if length == 1 else position + torch.arange(length)
        out = self.model(
            input_ids=tokens,
            position_ids=positions.unsqueeze(0),
            past_key_values=self.cache.layers(positions, self.prefix, batched=self.batched),
            use_cache=True,
            **self.options,
        )
        return out.logits[:, -1:, :].squeeze(1)


def methods_for(
    context: int, prefill_tokens: int, *, attention: Attention = "stock", fixed: bool = False
) -> tuple[GenerationMethod, ...]:
    """The methods of a program with a cache of so many positions.

    The stock attention's cost follows a method's capacity, so there are several for each role: of
    2048 positions, those of 128, 512 and 2048. The kernel's follows the position.
    """
    bounds = (context,) if attention == "kernel" else bounds_of(context)
    return tuple(_methods(bounds, min(prefill_tokens, context), fixed))


def _methods(bounds: Sequence[int], tokens: int, fixed: bool) -> Iterator[GenerationMethod]:
    roles: tuple[tuple[Literal["prefill", "decode"], int], ...] = (
        ("prefill", tokens),
        ("decode", 1),
    )
    for role, most in roles:
        for capacity in bounds:
            if capacity < most:
                continue
            yield GenerationMethod(
                name=role if capacity == bounds[-1] else f"{role}_{capacity}",
                role=role,
                max_tokens=most,
                dynamic=role == "prefill" and not fixed,
                capacity=capacity,
            )


def source_of(
    method: GenerationMethod, model: Any, cache: Buffers, *, batched: bool
) -> MethodSource:
    """What the method is traced from."""
    module = CachePrefixMethod(model, cache, method.capacity, batched=batched)
    length = method.max_tokens
    # All kinds of tokens: of one alone, attention gives the same at every position.
    tokens = torch.arange(length).unsqueeze(0) % model.config.vocab_size
    inputs = ExampleInputs((tokens, torch.zeros(1, dtype=torch.int64)))
    shapes = None
    if method.dynamic:
        shapes = ({1: torch.export.Dim("tokens", min=2, max=length)}, None)
    return MethodSource(module.eval(), inputs, shapes)
