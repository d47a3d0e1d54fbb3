"""Ways to compute a model's logits eagerly, some tokens after the others."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch

from etdeploy.export.worker.tracing.tensors import buffers_restored
from etdeploy.program.generation import GenerationMethod

# What the module of a method calls the cache.
_CACHE = "cache."


class Forward(Protocol):
    """A model in the middle of a text."""

    def last(self, ids: Sequence[int]) -> torch.Tensor:
        """The logits after the next tokens, of shape (vocabulary,)."""

    def each(self, ids: Sequence[int]) -> torch.Tensor:
        """The logits after each of the next tokens, of shape (tokens, vocabulary)."""


class OwnForward:
    """transformers' own forward, with a cache of its own.

    Args:
        model: transformers'.
    """

    def __init__(self, model: Any) -> None:
        takes = inspect.signature(model.forward).parameters
        self._last_only = {"logits_to_keep": 1} if "logits_to_keep" in takes else {}
        self._model, self._cache = model, None

    def last(self, ids: Sequence[int]) -> torch.Tensor:
        """See `Forward`."""
        return self._logits(ids, **self._last_only)[-1]

    def each(self, ids: Sequence[int]) -> torch.Tensor:
        """See `Forward`."""
        return self._logits(ids)

    def _logits(self, ids: Sequence[int], **options: Any) -> torch.Tensor:
        tokens = torch.tensor([list(ids)])
        with torch.no_grad():
            out = self._model(
                input_ids=tokens, past_key_values=self._cache, use_cache=True, **options
            )
        self._cache = out.past_key_values
        logits: torch.Tensor = out.logits[0]
        return logits.float()


@contextmanager
def own_attention(model: Any, name: str) -> Iterator[None]:
    """The model with the attention that it was loaded with, in the block.

    Args:
        model: transformers'.
        name: Of that attention.
    """
    of_path = model.config._attn_implementation
    model.set_attn_implementation(name)
    try:
        yield
    finally:
        model.set_attn_implementation(of_path)


class MethodsForward:
    """The methods of the program, called as the runner calls them.

    Each may have a cache of its own: quantisation copies the module where it works on the graph.

    Args:
        methods: As the runner is told of them.
        modules: Of the methods, by name.
    """

    def __init__(
        self, methods: Sequence[GenerationMethod], modules: Mapping[str, torch.nn.Module]
    ) -> None:
        self._methods, self._modules = methods, modules
        self._position, self._called = 0, ""

    def last(self, ids: Sequence[int]) -> torch.Tensor:
        """See `Forward`."""
        rest, logits = list(ids), torch.empty(0)
        while rest:
            method = self._method_for(len(rest))
            part = rest[: method.max_tokens]
            rest = rest[len(part) :]
            logits = self._call(method.name, part)
        return logits

    def each(self, ids: Sequence[int]) -> torch.Tensor:
        """See `Forward`."""
        return torch.stack([self.last([token]) for token in ids])

    def _method_for(self, waiting: int) -> GenerationMethod:
        fitting = [
            m
            for m in self._methods
            if self._position + min(waiting, m.max_tokens) <= m.capacity
            and (m.max_tokens == 1 or waiting >= (2 if m.dynamic else m.max_tokens))
        ]
        return min(fitting, key=lambda m: (-min(waiting, m.max_tokens), m.capacity))

    def _call(self, name: str, part: Sequence[int]) -> torch.Tensor:
        module = self._modules[name]
        if self._called not in ("", name):
            _hand_over(self._modules[self._called], module)
        with torch.no_grad():
            out = module(torch.tensor([list(part)]), torch.tensor([self._position]))
        self._called, self._position = name, self._position + len(part)
        logits: torch.Tensor = out[0]
        return logits.float()


def _hand_over(before: torch.nn.Module, after: torch.nn.Module) -> None:
    """Copies the cache from one method to the next, unless it is the same."""
    filled = dict(before.named_buffers())
    for name, buffer in after.named_buffers():
        if name.startswith(_CACHE) and filled.get(name) is not buffer and name in filled:
            buffer.copy_(filled[name])


@contextmanager
def caches_restored(modules: Mapping[str, torch.nn.Module]) -> Iterator[None]:
    """The modules' caches as they were, after the block: the program begins with them."""
    buffers = {id(b): b for m in modules.values() for b in m.buffers()}
    with buffers_restored(buffers.values()):
        yield
