"""A language model of transformers, as the methods of a program that generates text."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch

from etdeploy.export.hf.config import FACTORY
from etdeploy.export.worker.failures import UnsupportedModelError, WorkerError, exception_text, fail
from etdeploy.export.worker.language.attention import (
    GROUPED,
    KERNEL,
    LLAMA,
    WHOLE,
    register,
    register_llama,
)
from etdeploy.export.worker.language.cache import Buffers, has_attention, probed, set_window
from etdeploy.export.worker.language.cache_places import TokenWindow, bounds_of
from etdeploy.export.worker.language.experts import cost_note, register_experts, split_experts
from etdeploy.export.worker.language.load import own_forward
from etdeploy.export.worker.language.methods import (
    CachePrefixMethod,
    forward_method,
    inputs_at,
    methods_for,
    plain_embeddings,
    source_of,
)
from etdeploy.export.worker.language.static_cache import (
    StaticCalls,
    StaticMethod,
    StaticModel,
    static_methods,
    static_model,
    static_parts,
)
from etdeploy.export.worker.language.static_cache import register as register_static
from etdeploy.export.worker.loading.source import MethodSource
from etdeploy.export.worker.tracing.tensors import buffers_restored
from etdeploy.program.generation import Attention, GenerationMethod, Layout, StaticCache
from etdeploy.recipe.sections.export import GenerationMode

Path = Literal["fast", "plain", "static"]
# Tokens of the comparison with the model's own forward: a part of a prompt, and single tokens.
_PROMPT, _SINGLE = 5, 2
# Of the segments of its cache: the prompt is in two of them, and one of the tokens in a third.
_BOUNDS = (3, 6)
# Of logits, relative to the largest: float32 sums in another order.
_TOLERANCE = 1e-3
_NAMES: dict[tuple[Layout, Attention], str] = {
    ("etdeploy", "kernel"): KERNEL,
    ("etdeploy", "stock"): GROUPED,
    ("executorch", "kernel"): LLAMA,
    ("executorch", "stock"): GROUPED,
}
_LAYERS = (
    "model.hf takes models of transformers whose layers are full or sliding attention, short "
    f"convolutions, or have one recurrent state.\n{FACTORY}"
)
_STOCK = (
    "The attention is that of stock operators, over the whole cache at each token: {why}. A "
    "smaller context makes it faster."
)
_ONE_BY_ONE = (
    "Layers of the model have a recurrent state of all earlier tokens: the program takes a prompt "
    "token by token, and can go back to the beginning of a text only."
)


@dataclass(frozen=True)
class GenerationSources:
    """A model, ready to be exported.

    Attributes:
        path, path_reason: How the cache and the attention are computed, and why.
        attention: `kernel` where it is etdeploy's own operator.
        rewind: How far a position may be set back, as `program.generation` has it.
        source: Makes the source of a method of a model that shares the cache.
        static_cache: As `program.generation` has it.
    """

    sources: dict[str, MethodSource]
    methods: tuple[GenerationMethod, ...]
    path: Path
    path_reason: str
    attention: Attention
    rewind: int | None
    source: Callable[[GenerationMethod, Any], MethodSource]
    notes: tuple[str, ...] = ()
    static_cache: StaticCache | None = None

    def adapted(self, name: str, model: Any) -> GenerationSources:
        """The same methods of the model with an adapter, which have its name before their own."""
        methods = tuple(m.model_copy(update={"name": f"{name}_{m.name}"}) for m in self.methods)
        sources = {m.name: self.source(m, model) for m in methods}
        return replace(self, sources=sources, methods=methods)


def generation_sources(
    model: Any,
    *,
    context: int,
    prefill_tokens: int,
    path: Literal["auto", "fast", "plain", "static"],
    attention: Attention = "stock",
    layout: Layout = "etdeploy",
    verify_tokens: int = 0,
    fixed: bool = False,
    conditional: bool = False,
    mode: GenerationMode | None = None,
    bits: int = 32,
    window: TokenWindow | None = None,
) -> GenerationSources:
    """The methods of a language model.

    `fixed` and `conditional` are the lowering's `fixed_shapes` and `conditional`; `mode` is for a
    backend whose path is static, None for others. A cache of less than 32 `bits` is for the path
    fast with etdeploy's kernel; no other is tried then.

    Raises:
        UnsupportedModelError: The model fits no path with such a cache, or takes no `window`.
    """
    register()
    register_static()
    register_experts()
    own = _own_logits(model)
    set_window(model, window)
    paths: tuple[Path, ...] = ("fast", "plain") if mode is None else ("static", "fast", "plain")
    wanted: tuple[Path, ...] = paths if path == "auto" else (path,)
    if bits < 32:
        wanted = ("fast",)
        if not has_attention(model):
            raise UnsupportedModelError("none of its layers keeps keys and values")
    reasons: list[str] = []
    unread: list[str] = []
    attentions: tuple[Attention, ...] = (attention,)
    if layout == "executorch" and attention == "kernel":
        register_llama()
        attentions = ("kernel", "stock")
    for each, own_attention in _ways(wanted, attentions):
        try:
            split_experts(model, conditional=conditional)
            if each == "static":
                static = _static(model, context, own)
                methods = static_methods(context, prefill_tokens, mode or "hybrid")
                return GenerationSources(
                    sources={m.name: static.source(m, model) for m in methods},
                    methods=methods,
                    path=each,
                    path_reason=_why(path, each, reasons),
                    attention=own_attention,
                    rewind=None,
                    source=static.source,
                    notes=tuple(filter(None, (cost_note(model),))),
                    static_cache=static.facts,
                )
            cache = _fitting(
                model, each, own_attention, layout, context, prefill_tokens, own, bits, fixed=fixed
            )
        except UnsupportedModelError as misfit:
            more = own_attention != attentions[-1] and each == "fast"
            (unread if more else reasons).append(str(misfit))
            continue
        # Without attention, all positions cost the same.
        single = own_attention if has_attention(model) else "kernel"
        methods = methods_for(
            context, prefill_tokens,
            attention=single, fixed=fixed, layout=layout, verify_tokens=verify_tokens,
        )  # fmt: skip
        batched = each == "plain"
        rewind = cache.ring.rewind if cache.ring else None
        if cache.has_state:
            one_by_one = tuple(m for m in methods if m.role == "decode")
            methods, rewind = one_by_one or (forward_method(context, 1),), 0
        source = partial(_buffered, cache=cache, batched=batched)
        sources = {m.name: source(m, model) for m in methods}
        stock = _STOCK.format(why=unread[0]) if unread and each == "fast" else None
        notes = (cost_note(model), _ONE_BY_ONE if cache.has_state else None, stock)
        return GenerationSources(
            sources,
            methods,
            each,
            _why(path, wanted[0], reasons),
            own_attention,
            rewind,
            source,
            tuple(filter(None, notes)),
        )
    if bits < 32:
        raise UnsupportedModelError(reasons[0])
    raise _refused(model, wanted, reasons)


def _ways(
    paths: tuple[Path, ...], attentions: tuple[Attention, ...]
) -> Iterator[tuple[Path, Attention]]:
    """Each path, with the attentions to try in it."""
    for path in paths:
        for attention in attentions if path == "fast" else ("stock",):
            yield path, attention


def _buffered(
    method: GenerationMethod, model: Any, *, cache: Buffers, batched: bool
) -> MethodSource:
    return source_of(method, model, cache, batched=batched)


def _static(model: Any, context: int, wanted: torch.Tensor) -> StaticModel:
    """The static cache of a model whose logits are those of transformers' forward with it."""
    if "position_ids" not in inspect.signature(model.forward).parameters:
        raise UnsupportedModelError("its forward takes no positions")
    with torch.no_grad():
        _use_exportable_parts(model, context)
        try:
            made = static_model(model, probed(model), context)
            with static_parts(model, context):
                _compare(wanted, _in_static_parts(model, made))
        except (MemoryError, UnsupportedModelError):
            raise
        except Exception as error:  # the model's code, given a cache that it may not know
            raise UnsupportedModelError(_raised(model, "static", error)) from error
    return made


def _in_static_parts(model: Any, made: StaticModel) -> torch.Tensor:
    """The logits after padding and a part of the tokens, and the rest one by one."""
    calls, tokens = StaticCalls(made.facts), _tokens(model)[0].tolist()
    method = StaticMethod(model, made.facts, made.layers)
    parts = [(tokens[:_PROMPT], 0), *(([t], _PROMPT + i) for i, t in enumerate(tokens[_PROMPT:]))]
    for ids, position in parts:
        length = len(ids) + 1 if position == 0 else 1
        logits, *new = method(*calls.inputs(ids, position, length))
        calls.store(position, len(ids), new)
    return logits


def _fitting(
    model: Any,
    path: Path,
    attention: Attention,
    layout: Layout,
    context: int,
    most_tokens: int,
    wanted: torch.Tensor,
    bits: int,
    *,
    fixed: bool,
) -> Buffers:
    """The cache of a path on which the model gives the logits of transformers' forward.

    They are compared with a cache of floats.
    """
    own, fast = model.config._attn_implementation, path == "fast"
    name = _NAMES[layout, attention] if fast else WHOLE
    try:
        with torch.no_grad():
            _use_exportable_parts(model, context)
            examples = probed(model)
            model.set_attn_implementation(name)
            segmented = fast and attention == "stock" and layout == "etdeploy"
            llama = name == LLAMA
            bounds: tuple[int, ...] = (*_BOUNDS, context) if segmented else (context,)
            checked = Buffers(model, examples, bounds, most_tokens, llama=llama)
            _compare(wanted, _in_parts(model, checked, _tokens(model), batched=not fast))
            del checked
            bounds = bounds_of(context, fixed=fixed) if segmented else (context,)
            return Buffers(model, examples, bounds, most_tokens, llama=llama, bits=bits)
    except (MemoryError, UnsupportedModelError):
        model.set_attn_implementation(own)
        raise
    except Exception as error:  # the model's code, given a cache that it may not know
        model.set_attn_implementation(own)
        raise UnsupportedModelError(_raised(model, path, error)) from error


def _raised(model: Any, path: Path, error: Exception) -> str:
    config = model.config.get_text_config(decoder=True)
    if path == "fast" and getattr(config, "kv_lora_rank", None):
        return "it keeps keys and values compressed (MLA), and expands all of them for each token"
    return f"its forward raised {exception_text(error)}"


def _own_logits(model: Any) -> torch.Tensor:
    """Of the last token, as the model computes them before any part of it is exchanged."""
    with own_forward(model):
        logits: torch.Tensor = model(input_ids=_tokens(model), use_cache=False).logits[:, -1]
    if not torch.isfinite(logits).all():
        raise fail(
            "outputs",
            f"the model, a {type(model).__name__}, gives logits that are infinite or no numbers",
            remedy="Its weights may be damaged: get them again.",
        )
    return logits


def _tokens(model: Any) -> torch.Tensor:
    return torch.arange(1, _PROMPT + _SINGLE + 1).unsqueeze(0) % model.config.vocab_size


def _in_parts(model: Any, cache: Buffers, tokens: torch.Tensor, *, batched: bool) -> torch.Tensor:
    """The logits after a part of the tokens at once, and the rest one by one."""
    method = CachePrefixMethod(model, cache, cache.capacity, batched=batched)
    with buffers_restored(cache.buffers()):
        # Layers with a state take one token at a time.
        first = 1 if cache.has_state else _PROMPT
        logits = method(*inputs_at(model, tokens[:, :first], 0))
        for position in range(first, _PROMPT + _SINGLE):
            single = tokens[:, position : position + 1]
            logits = method(*inputs_at(model, single, position))
    return logits


def _compare(wanted: torch.Tensor, found: torch.Tensor) -> None:
    moved = (wanted - found).abs().max().item()
    if not moved <= _TOLERANCE * max(1.0, wanted.abs().max().item()):
        raise UnsupportedModelError(
            f"its logits differ by {moved:.2g} there from those of its own forward"
        )


def _use_exportable_parts(model: Any, context: int) -> None:
    """Chooses, of what transformers offers, what torch.export can trace."""
    if has_attention(model) and not model._can_set_attn_implementation():
        raise UnsupportedModelError("the model hard-codes its attention, so it cannot be replaced")
    plain_embeddings(model)
    for module in model.modules():
        kind = getattr(module, "rope_type", None)
        if not isinstance(kind, str) or not (kind == "longrope" or "dynamic" in kind):
            continue
        # Such frequencies change with the length only beyond this, which a cache may never reach.
        rope = model.config.get_text_config(decoder=True).rope_parameters
        bound = rope.get("original_max_position_embeddings") or module.original_max_seq_len
        if context <= bound:
            module.rope_type = "default"


def _why(wanted: str, first: Path, reasons: list[str]) -> str:
    if reasons:
        return f"The model does not fit the {first} path: {reasons[0]}."
    if wanted != "auto":
        return f"The recipe says {wanted}."
    return "The model fits it: its logits there are those of its own forward."


def _refused(model: Any, wanted: tuple[Path, ...], reasons: list[str]) -> WorkerError:
    name = type(model).__name__
    if len(set(reasons)) == 1 < len(wanted):
        return fail("outputs", f"the model, a {name}, fits no path: {reasons[0]}", remedy=_LAYERS)
    listed = "; ".join(f"{path}: {reason}" for path, reason in zip(wanted, reasons, strict=True))
    other = "Leave export.generation.path at auto." if len(wanted) == 1 else _LAYERS
    return fail("outputs", f"the model, a {name}, does not fit the path {listed}", remedy=other)
