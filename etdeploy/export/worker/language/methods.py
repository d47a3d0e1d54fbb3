"""The methods of a program that generates text."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import torch
from transformers.modeling_outputs import CausalLMOutputWithPast

from etdeploy.export.worker.language.cache import Buffers, cache_argument
from etdeploy.export.worker.language.cache_places import bounds_of
from etdeploy.export.worker.loading.source import MethodSource
from etdeploy.export.worker.tracing.structure import ExampleInputs
from etdeploy.program.folder import FORWARD
from etdeploy.program.generation import Attention, GenerationMethod, Layout

PositionTable = Literal["rope", "ends"]
_ROWS: dict[PositionTable | None, int] = {None: 0, "rope": 3, "ends": 1}


class EmbeddedLanguageModel(torch.nn.Module):  # type: ignore[misc]
    """The language model in a model of several modalities, called as one of transformers.

    Its methods take embeddings in place of tokens, and `embeddings` gives those.

    Attributes:
        table: What the methods take of each token after the position, int64: `rope` three positions
            for the rotary embedding, of shape (3, S); `ends` the last position that it sees, of
            shape (1, S). None for nothing, where both are the token's own position.
    """

    def __init__(self, model: Any, table: PositionTable | None = None) -> None:
        super().__init__()
        self.table = table
        self.decoder, self.head = model.get_decoder(), model.get_output_embeddings()
        self.embeddings = model.get_input_embeddings()
        self.config = self.decoder.config

    def forward(self, *, logits_to_keep: int = 0, **inputs: Any) -> CausalLMOutputWithPast:
        """The logits of the last tokens, or of all."""
        out = self.decoder(**inputs)
        logits = self.head(out.last_hidden_state[:, -logits_to_keep:])
        return CausalLMOutputWithPast(logits=logits, past_key_values=out.past_key_values)

    def get_output_embeddings(self) -> torch.nn.Module:
        """The layer that gives logits."""
        return self.head

    def set_attn_implementation(self, name: str) -> None:
        """Replaces the attention of the language model alone."""
        self.decoder.set_attn_implementation(name)

    def _can_set_attn_implementation(self) -> bool:
        return bool(self.decoder._can_set_attn_implementation())


def takes_last_only(model: Any) -> bool:
    """Whether a model can be asked for the logits after the last token alone."""
    return "logits_to_keep" in inspect.signature(model.forward).parameters


class CachePrefixMethod(torch.nn.Module):  # type: ignore[misc]
    """A method that looks at the first positions of the cache.

    One that `verifies` takes, as its last input, the tokens whose logits it gives.
    """

    def __init__(
        self, model: Any, cache: Buffers, prefix: int, *, batched: bool, verifies: bool = False
    ) -> None:
        super().__init__()
        self.model, self.cache, self.prefix, self.batched = model, cache, prefix, batched
        takes = inspect.signature(model.forward).parameters
        self.keeps, self.verifies = takes_last_only(model), verifies
        embedded = isinstance(model, EmbeddedLanguageModel)
        self.named, self.numbered = cache_argument(model), embedded or "position_ids" in takes
        self.takes = "inputs_embeds" if embedded else "input_ids"
        self.table = model.table if embedded else None

    def forward(
        self, tokens: torch.Tensor, position: torch.Tensor, *further: torch.Tensor
    ) -> torch.Tensor:
        """The logits of the last token, or of those that the last input names.

        `tokens` are ids, or embeddings of shape (1, S, d), and then there may be a table of
        positions.
        """
        table: Sequence[torch.Tensor] = further
        rows: torch.Tensor | int = 1
        if self.verifies:
            *table, rows = further
        length = tokens.shape[1]
        positions = position if length == 1 else position + torch.arange(length)
        turned = table[0].unsqueeze(1) if self.table == "rope" else positions.unsqueeze(0)
        ends = table[0][0] if self.table == "ends" else None
        start = self._start(position, length) if self.cache.llama else None
        cache = self.cache.layers(
            positions, self.prefix, batched=self.batched, ends=ends, start=start
        )
        cache = self.cache.given(self.model, positions, cache)
        given = {self.takes: tokens, self.named: cache}
        if self.keeps:
            given["logits_to_keep"] = rows
        if self.numbered:
            given["position_ids"] = turned
        out = self.model(**given, use_cache=True)
        self.cache.store(self.model, cache)
        if not self.verifies:
            return out.logits[:, -1:, :].squeeze(1)
        return out.logits if self.keeps else out.logits[:, rows, :]

    def _start(self, position: torch.Tensor, length: int) -> Any:
        start = position.item()
        torch._check(start >= 0)
        torch._check(start + length <= self.prefix)
        return start


def inputs_at(model: Any, tokens: torch.Tensor, position: int) -> tuple[torch.Tensor, ...]:
    """What a model's methods take for token ids of shape (1, S), the first at a position."""
    start = torch.tensor([position])
    if not isinstance(model, EmbeddedLanguageModel):
        return tokens, start
    with torch.no_grad():
        embedded = model.embeddings(tokens)
    if model.table is None:
        return embedded, start
    table = torch.arange(position, position + tokens.shape[1]).repeat(_ROWS[model.table], 1)
    return embedded, start, table


def plain_embeddings(model: Any) -> None:
    """Takes the index of padding from embeddings, with which ExecuTorch knows no quantized one.

    It concerns gradients only.
    """
    for module in model.modules():
        if isinstance(module, torch.nn.Embedding):
            module.padding_idx = None


def methods_for(
    context: int,
    prefill_tokens: int,
    *,
    attention: Attention = "stock",
    fixed: bool = False,
    layout: Layout = "etdeploy",
    verify_tokens: int = 0,
) -> tuple[GenerationMethod, ...]:
    """The methods of a program with a cache of so many positions.

    With `verify_tokens`, those of prompts can give the logits of so many tokens.

    The stock attention's cost follows a method's capacity, so there are several for each role: of
    2048 positions, those of 128, 512 and 2048, or 512 and 2048 if sizes are `fixed`. The kernel's
    follows the position. ExecuTorch's own runner has one method for all calls.
    """
    if layout == "executorch":
        return (forward_method(context, 1 if fixed else min(prefill_tokens, context)),)
    bounds = (context,) if attention == "kernel" else bounds_of(context, fixed=fixed)
    tokens = min(prefill_tokens, context)
    return tuple(_methods(bounds, tokens, fixed, 0 if fixed else min(verify_tokens, tokens)))


def forward_method(context: int, tokens: int) -> GenerationMethod:
    """The one that ExecuTorch's own runner calls."""
    return GenerationMethod(
        name=FORWARD,
        role="prefill" if tokens > 1 else "decode",
        max_tokens=tokens,
        dynamic=tokens > 1,
        capacity=context,
    )


def _methods(
    bounds: Sequence[int], tokens: int, fixed: bool, verify_tokens: int
) -> Iterator[GenerationMethod]:
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
                verify_tokens=verify_tokens if role == "prefill" else 0,
            )


def source_of(
    method: GenerationMethod, model: Any, cache: Buffers, *, batched: bool
) -> MethodSource:
    """What the method is traced from."""
    most, length = method.verify_tokens, method.max_tokens
    module = CachePrefixMethod(model, cache, method.capacity, batched=batched, verifies=most > 0)
    # All kinds of tokens: of one alone, attention gives the same at every position.
    tokens = torch.arange(length).unsqueeze(0) % model.config.vocab_size
    # Two rows: torch.export takes a length of one as fixed.
    rows = (torch.arange(length)[-2:],) if most else ()
    inputs = ExampleInputs((*inputs_at(model, tokens, 0), *rows))
    shapes: Any = None
    if method.dynamic:
        # A method for all calls takes single tokens, too; else there is another one for these.
        least = 1 if method.name == FORWARD else 2
        tokens_of = {1: torch.export.Dim("tokens", min=least, max=length)}
        further: tuple[Any, ...] = tuple(tokens_of for _ in inputs.args[2:])
        if most:
            further = (*further[:-1], {0: torch.export.Dim("rows", min=1, max=most)})
        shapes = (tokens_of, None, *([further] if further else ()))
    return MethodSource(module.eval(), inputs, shapes, is_text=True)
