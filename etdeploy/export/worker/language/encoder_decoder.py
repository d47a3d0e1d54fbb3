"""Encoder-decoder models of transformers: speech recognition, translation, summaries.

The method `encoder` takes the tensors of the model's processor. It gives the keys and values of
each layer of cross-attention, float32 of shape (heads, S, d): they are the same for every token of
a text. `decode` takes a token and its position like that of other language models, and after them
these tensors. Its own keys and values are in buffers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from etdeploy.export.hf.config import FACTORY
from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.failures import UnsupportedModelError, WorkerError, exception_text, fail
from etdeploy.export.worker.language.attention import MASKED, UNBATCHED, register
from etdeploy.export.worker.language.cache_layers import AttentionLayer, CachePositions
from etdeploy.export.worker.language.cache_places import Places
from etdeploy.export.worker.language.forward import MethodsForward, OwnForward
from etdeploy.export.worker.language.load import own_forward
from etdeploy.export.worker.language.methods import plain_embeddings
from etdeploy.export.worker.loading.source import MethodSource
from etdeploy.export.worker.tasks.inputs import (
    Processor,
    TaskTensors,
    random_input_note,
    task_tensors,
)
from etdeploy.export.worker.tasks.load import longest_text
from etdeploy.export.worker.tracing.structure import ExampleInputs
from etdeploy.export.worker.tracing.tensors import buffers_restored
from etdeploy.program.generation import ENCODER, GenerationEncoder, GenerationMethod

DECODE = "decode"
# Of logits, relative to the largest: float32 sums in another order.
_TOLERANCE = 1e-3
_COMPARED = 3
# Tokens of the encoder's text, where neither the model nor its tokenizer has a limit.
_LONGEST = 512
# How tokenizers write the token of a language, by its code.
_LANGUAGES = ("<|{}|>", "{}", "__{}__")
_TRANSCRIBE = "transcribe"


@dataclass(frozen=True)
class EncoderInput:
    """The user's input, as tensors, and what the decoder's text begins with.

    Attributes:
        longest: The most tokens of a text that the encoder takes; None without a limit, or where it
            takes no text.
    """

    processor: Processor
    tensors: TaskTensors
    prompt: tuple[int, ...]
    longest: int | None = None

    def forward(self, model: Any) -> OwnForward:
        """The model's own forward, at the beginning of its text."""
        allowed = SuppressedTokens(model, len(self.prompt))
        return OwnForward(model, self.tensors.values, allowed)

    def methods_forward(
        self, methods: Sequence[GenerationMethod], modules: Mapping[str, torch.nn.Module]
    ) -> MethodsForward:
        """The same by the methods of the program."""
        with torch.no_grad():
            encoded = modules[ENCODER](*self.tensors.values.values())
        return MethodsForward(methods, modules, encoded)

    @property
    def calls(self) -> tuple[ExampleInputs, ...]:
        """The inputs of each call of the encoder."""
        return (ExampleInputs(tuple(self.tensors.values.values())),)

    @property
    def facts(self) -> GenerationEncoder:
        """What the program's description says of it."""
        return GenerationEncoder(
            prompt_ids=self.prompt,
            is_real=self.tensors.is_real,
            audio_s=self.audio_s,
            preprocess_ms=round(self.tensors.took_ms, 3),
        )

    @property
    def note(self) -> str | None:
        """A sentence where the input is random, or is cut."""
        most_s = self._most_s
        if most_s and self.tensors.is_real and self._given_s > most_s:
            return (
                f"The model takes {most_s:.3g} s of speech at once, the first of the "
                f"{self._given_s:.3g} s in the file."
            )
        return random_input_note(self.processor, self.tensors)

    @property
    def audio_s(self) -> float | None:
        """Seconds of speech; None for text."""
        if self.processor.modality != "audio":
            return None
        return min(self._given_s, self._most_s or math.inf)

    @property
    def _given_s(self) -> float:
        content = self.tensors.content if self.processor.modality == "audio" else ()
        return len(content) / self.processor.sampling_rate

    @property
    def _most_s(self) -> float | None:
        """What Whisper's feature extractor cuts audio to, and fills it up to with silence."""
        samples = getattr(self.processor.reads, "n_samples", None)
        return samples / self.processor.sampling_rate if isinstance(samples, int) else None


def encoder_input(spec: ExportSpec, model: Any, processor: Processor) -> EncoderInput:
    """The input that the spec names, for a model."""
    longest = None
    if processor.modality == "text":
        longest = longest_text(model, processor) or _LONGEST
    tensors = task_tensors(processor, spec.input, longest)
    prompt = tuple(_prompt(model, processor, tensors, spec.input.language))
    return EncoderInput(processor, tensors, prompt, longest)


class SuppressedTokens(torch.nn.Module):  # type: ignore[misc]
    """Gives the least of all logits to tokens that never come, and that no text begins with.

    So does `generate` of transformers, as generation_config.json says it.
    """

    def __init__(self, model: Any, prompt_tokens: int) -> None:
        super().__init__()
        self.begins = prompt_tokens - 1
        never, first = (_chosen(model, f"{when}suppress_tokens") for when in ("", "begin_"))
        if never is not None and first is not None:
            first = first * (1 - never)
        self.register_buffer("never", never)
        self.register_buffer("first", first)

    def forward(self, logits: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Logits of shape (S, vocabulary) after the tokens at `positions`, of shape (S,)."""
        chosen = self.never
        if self.first is not None:
            away = torch.clamp((positions.to(torch.float32) - self.begins).abs(), max=1.0)
            begins = self.first * (1 - away).unsqueeze(-1)
            chosen = begins if chosen is None else chosen + begins
        if chosen is None:
            return logits
        # XNNPACK takes products and sums of floats, and neither booleans nor a choice by them. What
        # is not chosen stays exactly as it is.
        return logits + (logits.amin(-1, keepdim=True) - logits) * chosen


def _chosen(model: Any, setting: str) -> torch.Tensor | None:
    """1 for each token that a list of generation_config.json names, of shape (vocabulary,)."""
    size = model.get_output_embeddings().weight.shape[0]
    ids = [i for i in getattr(model.generation_config, setting, None) or () if 0 <= i < size]
    return torch.zeros(size).index_fill_(0, torch.tensor(ids), 1.0) if ids else None


def _prompt(
    model: Any, processor: Processor, tensors: TaskTensors, language: str | None
) -> Iterator[int]:
    """The tokens before the text, as `generate` of transformers begins it."""
    settings = model.generation_config
    start = _first(
        getattr(each, name, None)
        for name in ("decoder_start_token_id", "bos_token_id")
        for each in (settings, model.config)
    )
    yield start
    known = getattr(settings, "lang_to_id", None)
    if known:
        yield (
            _language(processor, language)
            if language
            else _spoken(model, tensors, start, [int(i) for i in known.values()])
        )
        tasks = getattr(settings, "task_to_id", None) or {}
        if _TRANSCRIBE in tasks:
            yield int(tasks[_TRANSCRIBE])
    elif language:
        yield _language(processor, language)
    elif (forced := getattr(settings, "forced_bos_token_id", None)) is not None:
        yield int(forced)
    if (untimed := getattr(settings, "no_timestamps_token_id", None)) is not None:
        yield int(untimed)


def _first(found: Iterator[Any]) -> int:
    for each in found:
        value = each[0] if isinstance(each, list | tuple) and each else each
        if isinstance(value, int):
            return value
    raise fail(
        "checkpoint",
        "the model does not say which token its texts begin with",
        remedy="Set decoder_start_token_id in its generation_config.json.",
    )


def _language(processor: Processor, language: str) -> int:
    """The token of a language."""
    tokenizer = processor.tokenizer
    unknown = getattr(tokenizer, "unk_token_id", None)
    for form in _LANGUAGES if tokenizer else ():
        found = tokenizer.convert_tokens_to_ids(form.format(language))
        if isinstance(found, int) and found != unknown:
            return found
    raise fail(
        "inputs",
        f"the model's tokenizer has no token of the language {language!r}",
        remedy="Write its code as the model does: en, or eng_Latn. Of a model for one language, or "
        "with the language in the text, leave it out.",
        file="benchmark.input.language",
    )


def _spoken(model: Any, tensors: TaskTensors, start: int, languages: list[int]) -> int:
    """The token of the language that the model hears."""
    with own_forward(model):
        logits = OwnForward(model, tensors.values).last([start])
    return languages[int(logits[languages].argmax())]


class CrossLayer(CacheLayerMixin):  # type: ignore[misc]
    """Keys and values of what the encoder gave, which do not change with the text."""

    is_compileable = True

    def __init__(self, keys: Any = None, values: Any = None) -> None:
        super().__init__()
        self.keys, self.values, self.is_initialized = keys, values, True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keeps both."""
        self.keys, self.values = key_states, value_states
        return key_states, value_states

    def get_seq_length(self) -> int:
        """Positive where the layer is filled: transformers asks for nothing else."""
        return 0 if self.keys is None else 1

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """None is masked."""
        return 0, 0

    def get_max_length(self) -> int:
        return -1

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing: there is nothing to prepare."""


class EncoderMethod(torch.nn.Module):  # type: ignore[misc]
    """From the tensors of a processor to keys and values of each layer of cross-attention."""

    def __init__(self, model: Any, layers: int, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.layers, self.names = model, layers, names

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The decoder fills the cache with its first token; what else it computes is not used."""
        cross = [CrossLayer() for _ in range(self.layers)]
        self.model(
            **dict(zip(self.names, inputs, strict=True)),
            decoder_input_ids=torch.zeros(1, 1, dtype=torch.int64),
            decoder_attention_mask=torch.zeros(1, 1, 1, 1),
            past_key_values=EncoderDecoderCache(DynamicCache(), Cache(layers=cross)),
            use_cache=True,
        )
        # In the order of their dimensions: with other strides, XNNPACK refuses them as inputs.
        given = (t for layer in cross for t in (layer.keys, layer.values))
        return tuple(t.squeeze(0).contiguous() for t in given)


class DecodeMethod(torch.nn.Module):  # type: ignore[misc]
    """The logits after a token."""

    def __init__(
        self, model: Any, cross: tuple[torch.Tensor, ...], context: int, prompt_tokens: int
    ) -> None:
        super().__init__()
        self.model, self.layers = model, len(cross) // 2
        self.allowed = SuppressedTokens(model, prompt_tokens)
        self.register_buffer("held", torch.arange(context, dtype=torch.float32))
        for index, (keys, values) in enumerate(zip(cross[::2], cross[1::2], strict=True)):
            for name, each in (("key", keys), ("value", values)):
                shape = (each.shape[0], context, each.shape[2])
                self.register_buffer(f"{name}_{index}", torch.zeros(shape))

    def caches(self) -> list[torch.Tensor]:
        """The buffers that it writes to."""
        names = (f"{name}_{i}" for i in range(self.layers) for name in ("key", "value"))
        return [getattr(self, name) for name in names]

    def forward(
        self, tokens: torch.Tensor, position: torch.Tensor, *cross: torch.Tensor
    ) -> torch.Tensor:
        """The logits, of shape (1, vocabulary)."""
        places = Places((position,), self.held)
        step = CachePositions(position, places, places, batched=False)
        own = [
            AttentionLayer(
                (getattr(self, f"key_{i}"),), (getattr(self, f"value_{i}"),), step, sliding=False
            )
            for i in range(self.layers)
        ]
        filled = [CrossLayer(*cross[2 * i : 2 * i + 2]) for i in range(self.layers)]
        ahead = position.to(torch.float32) - self.held
        out = self.model(
            # Only what the cache was filled with.
            encoder_outputs=BaseModelOutput(last_hidden_state=torch.zeros(1, 1, 1)),
            decoder_input_ids=tokens,
            decoder_attention_mask=(torch.clamp(ahead, -1.0, 0.0) * MASKED).reshape(1, 1, 1, -1),
            past_key_values=EncoderDecoderCache(Cache(layers=own), Cache(layers=filled)),
            use_cache=True,
        )
        logits: torch.Tensor = self.allowed(out.logits[:, -1], position)
        return logits


def encoder_decoder_sources(
    model: Any, given: EncoderInput, *, context: int, fixed: bool
) -> tuple[dict[str, MethodSource], tuple[GenerationMethod, ...]]:
    """The methods of a model, and those of them that generate.

    Their logits are those of the model's own forward.

    Args:
        model: Of transformers.
        given: The example input.
        context: Positions of the decoder's text.
        fixed: Whether the encoder takes texts of one length only.
    """
    register()
    wanted = _own_logits(model, given)
    own = model.config._attn_implementation
    try:
        if not model._can_set_attn_implementation():
            raise UnsupportedModelError(
                "the model hard-codes its attention, so it cannot be replaced"
            )
        plain_embeddings(model)
        model.set_attn_implementation(UNBATCHED)
        encoder, decode, cross = _methods(model, given, context)
        _compare(wanted, decode, given.prompt, cross)
    except MemoryError:
        raise
    except Exception as error:  # the model's code, given a cache that it may not know
        model.set_attn_implementation(own)
        raise _refused(model, error) from error
    method = GenerationMethod(
        name=DECODE, role="decode", max_tokens=1, dynamic=False, capacity=context
    )
    return _sources(encoder, decode, cross, given, fixed=fixed), (method,)


def _sources(
    encoder: EncoderMethod,
    decode: DecodeMethod,
    cross: tuple[torch.Tensor, ...],
    given: EncoderInput,
    *,
    fixed: bool,
) -> dict[str, MethodSource]:
    encoder_shapes, decode_shapes = None, None
    if given.processor.modality == "text" and not fixed:
        tokens = torch.export.Dim("tokens", min=2, max=given.longest)
        encoder_shapes = (tuple({1: tokens} for _ in encoder.names),)
        decode_shapes = (None, None, tuple({1: tokens} for _ in cross))
    first = torch.tensor([[given.prompt[0]]]), torch.zeros(1, dtype=torch.int64)
    return {
        ENCODER: MethodSource(encoder.eval(), given.calls[0], encoder_shapes),
        DECODE: MethodSource(decode.eval(), ExampleInputs((*first, *cross)), decode_shapes),
    }


def _own_logits(model: Any, given: EncoderInput) -> list[torch.Tensor]:
    """After each of some tokens, as the model computes them itself."""
    with own_forward(model):
        forward = given.forward(model)
        return [forward.last([token]) for token in _tokens(given.prompt)]


def _tokens(prompt: tuple[int, ...]) -> list[int]:
    return [*prompt, *([prompt[-1]] * _COMPARED)]


def _methods(
    model: Any, given: EncoderInput, context: int
) -> tuple[EncoderMethod, DecodeMethod, tuple[torch.Tensor, ...]]:
    layers = _layers(model, given.tensors.values)
    encoder = EncoderMethod(model, layers, tuple(given.tensors.values))
    with torch.no_grad():
        cross = encoder(*given.tensors.values.values())
    return encoder, DecodeMethod(model, cross, context, len(given.prompt)), cross


def _layers(model: Any, inputs: Mapping[str, torch.Tensor]) -> int:
    """How many layers of the decoder have cross-attention."""
    with torch.no_grad():
        tokens = torch.zeros(1, 1, dtype=torch.int64)
        out = model(**inputs, decoder_input_ids=tokens, use_cache=True)
    cache = out.past_key_values
    if not isinstance(cache, EncoderDecoderCache):
        raise UnsupportedModelError(f"its cache is a {type(cache).__name__}")
    return len(cache.cross_attention_cache)


def _compare(
    wanted: list[torch.Tensor],
    decode: DecodeMethod,
    prompt: tuple[int, ...],
    cross: tuple[torch.Tensor, ...],
) -> None:
    with torch.no_grad(), buffers_restored(decode.caches()):
        for position, (token, own) in enumerate(zip(_tokens(prompt), wanted, strict=True)):
            found = decode(torch.tensor([[token]]), torch.tensor([position]), *cross)[0]
            moved = (own - found).abs().max().item()
            if not moved <= _TOLERANCE * max(1.0, own.abs().max().item()):
                raise UnsupportedModelError(
                    f"its logits differ by {moved:.2g} there from those of its own forward"
                )


def _refused(model: Any, error: Exception) -> WorkerError:
    reason = (
        str(error)
        if isinstance(error, UnsupportedModelError)
        else f"its forward raised {exception_text(error)}"
    )
    return fail(
        "outputs",
        f"the model, a {type(model).__name__}, cannot be split into an encoder and a decoder with "
        f"a cache: {reason}",
        remedy=FACTORY,
    )
