"""Ways to compute a model's logits eagerly, some tokens after the others."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from transformers.cache_utils import DynamicCache

from etdeploy.export.worker.language.cache import cache_argument
from etdeploy.export.worker.language.cache_places import packed, unpacked
from etdeploy.export.worker.language.methods import takes_last_only
from etdeploy.export.worker.language.own_states import own_state
from etdeploy.export.worker.language.static_cache import StaticCalls
from etdeploy.export.worker.lowering.weight_files import WeightFiles
from etdeploy.export.worker.tracing.tensors import buffers_restored
from etdeploy.program.generation import TOKEN_EMBEDDING, GenerationMethod, QuantizationCost
from etdeploy.program.quality import OutputLoss

# What the module of a method calls the cache.
_CACHE = "cache."


class Forward(Protocol):
    """A model in the middle of a text."""

    def last(self, ids: Sequence[int]) -> torch.Tensor:
        """The logits after the next tokens, of shape (vocabulary,)."""

    def each(self, ids: Sequence[int], start: int = 0) -> torch.Tensor:
        """The logits after each of the next tokens from index `start` on: (tokens, vocabulary)."""


class OwnForward:
    """transformers' own forward, with its own cache.

    Of a model that has an encoder, `encoded` are its inputs, and `allowed` takes away the logits of
    tokens that may not come. `beside` are inputs beside the first tokens, like an image, and how
    many tokens these are. Keys and values are rounded to those of a cache of so many `bits`.
    """

    def __init__(
        self,
        model: Any,
        encoded: Mapping[str, torch.Tensor] | None = None,
        allowed: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None,
        beside: tuple[Mapping[str, torch.Tensor], int] | None = None,
        bits: int = 32,
    ) -> None:
        self._takes_last_only = takes_last_only(model)
        self._model, self._named = model, cache_argument(model)
        self._cache: Any = RoundedCache(model.config, bits) if bits < 32 else None
        own = own_state(model)
        self._one_by_one = own is not None
        # A model with a cache beside its own states returns neither.
        self._own = own if own and own.kinds else None
        self._states: Sequence[torch.Tensor] = ()
        if self._own:
            if self._cache is None:
                self._cache = DynamicCache(config=model.config)
            self._states = self._own.initial(model)
        self._tokens, self._given = "input_ids", dict[str, Any]()
        self._allowed, self._position = allowed, 0
        self._beside, self._first = beside or ({}, 0)
        if encoded is not None:
            with torch.no_grad():
                outputs = model.get_encoder()(**encoded)
            self._tokens, self._given = "decoder_input_ids", {"encoder_outputs": outputs}

    def last(self, ids: Sequence[int]) -> torch.Tensor:
        return self.each(ids, len(ids) - 1)[0]

    def each(self, ids: Sequence[int], start: int = 0) -> torch.Tensor:
        wanted = len(ids) - start
        options = {"logits_to_keep": wanted} if start and self._takes_last_only else {}
        return self._logits(ids, **options)[-wanted:]

    def _parts(self, ids: Sequence[int]) -> list[Sequence[int]]:
        """What the model takes in one call each.

        The beginning of a text goes with what is beside it. Of several tokens later on, layers with
        a recurrent state would not see it.
        """
        first = self._first if self._position == 0 else 0
        if 0 < first < len(ids):
            return [ids[:first], ids[first:]]
        # A decoder that attends to an encoder has two caches, and no such layers.
        layers = getattr(self._cache, "layers", ())
        has_state = self._position > 0 and (self._one_by_one or any(map(_is_recurrent, layers)))
        return [[token] for token in ids] if has_state else [ids]

    def _logits(self, ids: Sequence[int], **options: Any) -> torch.Tensor:
        parts = self._parts(ids)
        if len(parts) > 1:
            return torch.cat([self._logits(part, **options) for part in parts])
        tokens = torch.tensor([list(ids)])
        with torch.no_grad():
            beside = self._beside if self._position == 0 else {}
            options |= {self._tokens: tokens, **self._given, **beside}
            if self._own:
                self._own.given(self._model, self._states)
            out = self._model(**{self._named: self._cache}, use_cache=True, **options)
            if self._own:
                self._states = self._own.after(self._model, None)
        self._cache = getattr(out, self._named, self._cache)
        logits: torch.Tensor = out.logits[0].float()
        self._position += len(ids)
        if self._allowed is None:
            return logits
        last = torch.arange(self._position - len(logits), self._position)
        return self._allowed(logits, last)


class RoundedCache(DynamicCache):  # type: ignore[misc]
    """transformers' cache of numbers as a cache of less than 32 bits has them."""

    def __init__(self, config: Any, bits: int) -> None:
        super().__init__(config=config)
        self._bits = bits

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        """Keeps keys and values; gives all so far."""
        rounded = (unpacked(packed(each, self._bits)) for each in (key_states, value_states))
        return super().update(*rounded, *args, **kwargs)


@contextmanager
def own_attention(model: Any, name: str) -> Iterator[None]:
    """The model with the attention of this name, such as the one that it was loaded with."""
    of_path = _attentions(model.config)
    model.set_attn_implementation(name)
    try:
        yield
    finally:
        model.set_attn_implementation(of_path)


def _is_recurrent(layer: Any) -> bool:
    initialized = getattr(layer, "is_recurrent_states_initialized", {})
    return any(initialized.values())


def _attentions(config: Any) -> dict[str, Any]:
    """Those of a model and of its parts, as `set_attn_implementation` takes them."""
    parts = {name: getattr(config, name, None) for name in config.sub_configs}
    own = {"": config._attn_implementation}
    return own | {name: _attentions(part) for name, part in parts.items() if part is not None}


class MethodsForward:
    """The methods of the program, called as the runner calls them.

    Each may have its own cache: quantization copies the module where it works on the graph.
    `encoded` are the outputs of the encoder, of a model that has one; with `image_id`, its rows,
    which are the embeddings of this token, and with `table` the positions that methods take of each
    token of the prompt, of shape (rows, tokens). `static` has the caches, where they are inputs;
    these modules have the logits of each token.
    """

    def __init__(
        self,
        methods: Sequence[GenerationMethod],
        modules: Mapping[str, torch.nn.Module],
        encoded: Sequence[torch.Tensor] = (),
        image_id: int | None = None,
        table: torch.Tensor | None = None,
        static: StaticCalls | None = None,
    ) -> None:
        self._static = static
        self._methods, self._modules, self._encoded = methods, modules, encoded
        self._position, self._called = 0, ""
        self._image_id, self._rows, self._table = image_id, 0, table

    def last(self, ids: Sequence[int]) -> torch.Tensor:
        rest, logits = list(ids), torch.empty(0)
        while rest:
            method = self._method_for(len(rest))
            part = rest[: method.max_tokens]
            rest = rest[len(part) :]
            logits = self._call_logits(method, part)[-1]
        return logits

    def each(self, ids: Sequence[int], start: int = 0) -> torch.Tensor:
        if not self._static:
            head, later = ids[: start + 1], ids[start + 1 :]
            return torch.stack([self.last(head), *(self.last([token]) for token in later)])
        rest, found = list(ids), []
        while rest:
            method = self._method_for(len(rest))
            part, rest = rest[: method.max_tokens], rest[method.max_tokens :]
            found.append(self._call_logits(method, part)[-len(part) :])
        return torch.cat(found)[start:]

    def _call_logits(self, method: GenerationMethod, part: Sequence[int]) -> torch.Tensor:
        """The logits of a call's last tokens, of shape (tokens, vocabulary)."""
        if self._static:
            logits = self._call_static(self._static, method, part)
        else:
            logits = self._call(method, part)
        return logits.float().reshape(-1, logits.shape[-1])

    def _method_for(self, waiting: int) -> GenerationMethod:
        least = 1 if self._static or all(m.max_tokens > 1 for m in self._methods) else 2
        fitting = [
            m
            for m in self._methods
            if self._position + min(waiting, m.max_tokens) <= m.capacity
            and (m.max_tokens == 1 or waiting >= (least if m.dynamic else m.max_tokens))
        ]
        return min(fitting, key=lambda m: (-min(waiting, m.max_tokens), m.max_tokens, m.capacity))

    def _call(self, method: GenerationMethod, part: Sequence[int]) -> torch.Tensor:
        name = method.name
        module = self._modules[name]
        if self._called not in ("", name):
            _hand_over(self._modules[self._called], module)
        tokens, position = torch.tensor([list(part)]), torch.tensor([self._position])
        rows = (torch.tensor([len(part) - 1]),) if method.verify_tokens else ()
        with torch.no_grad():
            if self._image_id is None:
                out = module(tokens, position, *self._encoded, *rows)
            else:
                out = module(self._embedded(tokens), position, *self._columns(len(part)))
        self._called, self._position = name, self._position + len(part)
        logits: torch.Tensor = out[0]
        return logits

    def _call_static(
        self, calls: StaticCalls, method: GenerationMethod, part: Sequence[int]
    ) -> torch.Tensor:
        with torch.no_grad():
            given = calls.inputs(part, self._position, method.max_tokens)
            logits: torch.Tensor
            logits, *new = self._modules[method.name](*given)
        calls.store(self._position, len(part), new)
        self._position += len(part)
        return logits

    def _embedded(self, tokens: torch.Tensor) -> torch.Tensor:
        rows: torch.Tensor = self._modules[TOKEN_EMBEDDING](tokens).clone()
        [images] = self._encoded
        for index in (tokens[0] == self._image_id).nonzero().flatten()[: len(images) - self._rows]:
            rows[0, index] = images[self._rows]
            self._rows += 1
        return rows

    def _columns(self, count: int) -> Iterator[torch.Tensor]:
        """Those of the table for the next tokens; after the prompt, they go on by one."""
        if self._table is not None:
            columns = torch.arange(self._position, self._position + count)
            last = self._table.shape[1] - 1
            yield self._table[:, columns.clamp(max=last)] + (columns - last).clamp(min=0)


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


# Tokens of one call: with fewer, a processor's matrix products take a quarter longer for each.
_READ = 192
# Of these, as many as are compared at a time.
_PART = 64


@dataclass(frozen=True)
class Original:
    """What the original model gave on a text.

    Attributes:
        perplexity: None where logits are NaN.
        logits: At each position that was predicted, float32 of shape (tokens, vocabulary), in
            parts; none where nothing is compared with them.
    """

    perplexity: float | None
    logits: tuple[torch.Tensor, ...] = ()


def windows(ids: Sequence[int], size: int, bos_id: int | None) -> tuple[tuple[int, ...], ...]:
    """A text in parts that a cache has room for; each begins as a text does."""
    head = () if bos_id is None else (bos_id,)
    body = tuple(ids[1:] if head and tuple(ids[:1]) == head else ids)
    room = size - len(head)
    parts = (head + body[i : i + room] for i in range(0, len(body), room))
    return tuple(part for part in parts if len(part) > 1)


def evaluate(
    begin: Callable[[], Forward],
    parts: Sequence[Sequence[int]],
    *,
    keep: bool,
    files: WeightFiles | None = None,
) -> Original:
    """The original model's perplexity, and if asked to `keep` them its logits, also in files."""
    surprise, kept, count = 0.0, [], 0
    for logits, targets in _predicted(begin, parts):
        surprise += _surprise(torch.log_softmax(logits, -1), targets)
        count += len(targets)
        if keep:
            kept.append(files.moved(logits) if files else logits)
    return Original(_perplexity(surprise, count), tuple(kept))


def compare(
    begin: Callable[[], Forward], parts: Sequence[Sequence[int]], original: Original
) -> tuple[QuantizationCost, OutputLoss]:
    """The quantized model's perplexity, and how far its logits are from the original's."""
    sums = _Sums()
    for before, (after, targets) in zip(original.logits, _predicted(begin, parts), strict=True):
        sums.add(before, after, targets)
    return sums.cost(), sums.loss()


@dataclass
class _Sums:
    """Over positions; `products`, `squares` and `largest` over logits that are finite in both."""

    surprise: float = 0.0
    positions: int = 0
    divergences: list[torch.Tensor] = field(default_factory=list)
    same_top: int = 0
    # Of the original's logits, of both, and of the quantized model's.
    products: torch.Tensor = field(default_factory=lambda: torch.zeros(3, dtype=torch.float64))
    squares: float = 0.0
    elements: int = 0
    largest: float = 0.0
    undefined: int = 0

    def add(self, before: torch.Tensor, after: torch.Tensor, targets: torch.Tensor) -> None:
        p, q = torch.log_softmax(before, -1), torch.log_softmax(after, -1)
        self.surprise += _surprise(q, targets)
        self.positions += len(targets)
        # Rounding may make the divergence of equal distributions a little less than 0.
        self.divergences.append(torch.where(p.isneginf(), 0.0, p.exp() * (p - q)).sum(-1).clamp(0))
        self.same_top += int((before.argmax(-1) == after.argmax(-1)).sum())
        finite = before.isfinite() & after.isfinite()
        suppressed = before.isneginf() & after.isneginf()
        self.undefined += int((~finite & ~suppressed).sum())
        b, a = (torch.where(finite, logits, 0.0).double() for logits in (before, after))
        self.products += torch.stack([(b * b).sum(), (b * a).sum(), (a * a).sum()])
        difference = a - b
        self.squares += float(difference.square().sum())
        self.elements += difference.numel()
        self.largest = max(self.largest, float(difference.abs().max()))

    def cost(self) -> QuantizationCost:
        divergences = torch.cat(self.divergences)
        rms_error = math.sqrt(self.squares / self.elements)
        return QuantizationCost(
            perplexity=_perplexity(self.surprise, self.positions),
            mean_kl_divergence=_finite(float(divergences.mean())),
            max_kl_divergence=_finite(float(divergences.max())),
            same_top_percent=100 * self.same_top / self.positions,
            logit_rms_error=None if self.undefined else rms_error,
            logit_max_abs_error=None if self.undefined else self.largest,
        )

    def loss(self) -> OutputLoss:
        """The same as of other outputs."""
        original, both, quantized = self.products.tolist()
        size = math.sqrt(original * quantized)
        measurable = original > 0 and self.squares > 0
        return OutputLoss(
            name="logits",
            cosine_similarity=both / size if size else None,
            sqnr_db=10 * math.log10(original / self.squares) if measurable else None,
            max_abs_error=self.largest,
            undefined=self.undefined,
        )


def _predicted(
    begin: Callable[[], Forward], parts: Sequence[Sequence[int]]
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Logits with the tokens that they are to predict, some positions at a time."""
    for part in parts:
        forward = begin()
        for start in range(0, len(part) - 1, _READ):
            end = min(start + _READ, len(part) - 1)
            logits = forward.each(part[start:end])
            targets = torch.tensor(part[start + 1 : end + 1])
            yield from zip(logits.split(_PART), targets.split(_PART), strict=True)


def _surprise(log_probabilities: torch.Tensor, targets: torch.Tensor) -> float:
    """The sum of -ln(probability) of the tokens that came."""
    return -float(log_probabilities.gather(-1, targets.unsqueeze(-1)).double().sum())


def _perplexity(surprise: float, count: int) -> float | None:
    mean = surprise / count
    # Beyond this, exp() overflows.
    return math.exp(mean) if mean < 700 else None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
