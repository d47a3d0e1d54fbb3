"""How a language model's program is quantized and computes attention, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from etdeploy.backends.registry import backend_named
from etdeploy.backends.rewrites import REWRITES, Chosen
from etdeploy.backends.schemes import AWQ, GPTQ, SEARCHED_SCHEMES, UNSCALED
from etdeploy.core.values import ReasonedChoice
from etdeploy.program.generation import (
    ENCODED_ONCE,
    Generation,
    GenerationMethod,
    Layout,
    attention_of,
    layout_for,
)
from etdeploy.recipe.model import Recipe
from etdeploy.recipe.sections.export import CalibrationText, ExportGeneration
from etdeploy.recipe.tasks import has_cross_attention, has_encoder

_STOCK = (
    "products and softmax are operators of every runtime, also of ExecuTorch's own release for apps"
)
_KERNEL = (
    "the runner has it with each provider, and llama::custom_sdpa is slower (docs/performance.md); "
    "a runtime without it, such as ExecuTorch's own release in an app, needs "
    "--set export.generation.layout=executorch or --set export.generation.attention=stock"
)


_LLAMA = (
    "llama::custom_sdpa and llama::update_cache are in ExecuTorch's kernels for language models, "
    "which its releases for apps have; the wheel has none, where the runner has them itself"
)
_ATTENTIONS: dict[Layout | None, tuple[str, str]] = {
    "etdeploy": (_KERNEL, "etdeploy's kernel"),
    "executorch": (_LLAMA, "ExecuTorch's kernel"),
    None: (_STOCK, "stock operators"),
}


def language_choices(recipe: Recipe, generation: Generation | None) -> tuple[ReasonedChoice, ...]:
    """Scales, the path, the operators of the attention and the methods of a program."""
    return tuple(_choices(recipe, generation)) if recipe.is_language_model else ()


def _choices(recipe: Recipe, generation: Generation | None) -> Iterator[ReasonedChoice]:
    if recipe.export.quantization in SEARCHED_SCHEMES:
        yield _scales(recipe)
    if recipe.export.rounding == GPTQ:
        reason = (
            "export.rounding is gptq: columns of a weight make up for the errors of those before "
            "them on the calibration text, which loses less at the same size and takes longer"
        )
        yield ReasonedChoice(name="rounding", value=GPTQ, reason=reason, by_hand=True)
    if recipe.export.quantization in SEARCHED_SCHEMES:
        yield from _scaling(recipe)
    if recipe.export.target_bits is not None:
        reason = (
            "export.target_bits: the linear layers that lose the most in 4 bits for their size get "
            "8; export.json lists them"
        )
        value = f"{recipe.export.target_bits:g} bits per weight on average"
        yield ReasonedChoice(name="bits", value=value, reason=reason, by_hand=True)
    yield from _layout(recipe, generation)
    yield _path(recipe, generation)
    yield _attention(recipe, generation)
    yield from _cache(recipe, generation)
    if recipe.model.lora:
        yield _adapters(recipe)
    if generation is None:
        return
    for method in generation.methods:
        most = f"{'up to ' if method.dynamic else ''}{method.max_tokens:,} tokens"
        yield ReasonedChoice(
            name=method.name,
            value="one token" if method.max_tokens == 1 else most,
            reason=_looks_at(generation, method),
        )


def _scaling(recipe: Recipe) -> Iterator[ReasonedChoice]:
    asked = recipe.export.scaling
    unread = has_encoder(recipe.model.task) or recipe.export.calibration == "none"
    if asked == UNSCALED or unread or not recipe.model.merge:
        return
    by_hand = asked == AWQ
    reason = (
        "columns with large inputs on the calibration text are rounded more finely, which loses "
        "less at the same size"
    )
    if by_hand:
        reason = f"export.scaling is awq: {reason}"
    else:
        reason += "; not if the weights do not fit in memory"
    yield ReasonedChoice(name="scaling", value=AWQ, reason=reason, by_hand=by_hand)


def _scales(recipe: Recipe) -> ReasonedChoice:
    text = _calibration(recipe.export.calibration)
    value = "by the weights alone" if text == "none" else "weighted by activations"
    read = "the input" if has_encoder(recipe.model.task) else "a text of etdeploy's"
    reason = (
        f"export.calibration is {text}"
        if text
        else f"weights count by what they are multiplied by on {read}, which loses less than "
        "counting all alike"
    )
    return ReasonedChoice(name="scales", value=value, reason=reason, by_hand=text is not None)


def _calibration(asked: str | CalibrationText | None) -> str | None:
    """What a recipe names."""
    if not isinstance(asked, CalibrationText):
        return asked
    own = "prompts" if isinstance(asked.prompts, tuple) else None
    text = asked.text or (None if own else "a text of etdeploy's")
    return " and ".join(filter(None, (text, own)))


def _adapters(recipe: Recipe) -> ReasonedChoice:
    lora, reason = recipe.model.lora or {}, "merged with the weights, before they are quantized"
    if not recipe.model.merge:
        reason = "the weights are there once, each adapter has methods; --lora NAME chooses one"
    names = ", ".join(lora) if isinstance(lora, dict) else lora.rpartition("/")[2]
    return ReasonedChoice(name="adapters", value=names, reason=reason, by_hand=True)


def _attention(recipe: Recipe, generation: Generation | None) -> ReasonedChoice:
    asked = attention_of(recipe)
    value, reason = asked if asked else ("stock", "")
    layout = _layout_of(recipe, generation)
    if generation and generation.attention != value:
        value, reason = generation.attention, "the program was exported so"
    more, name = _ATTENTIONS[layout if value == "kernel" else None]
    by_hand = bool(recipe.export.generation and recipe.export.generation.attention != "auto")
    return ReasonedChoice(name="attention", value=name, reason=f"{reason}; {more}", by_hand=by_hand)


_CACHES = {
    "float16": "keys and values take half of the memory of 32-bit floats",
    "int8": "keys and values take a bit more than a quarter of the memory of 32-bit floats: each "
    "head's row of a token has a scale",
}


def _cache(recipe: Recipe, generation: Generation | None) -> Iterator[ReasonedChoice]:
    """Only where it is not 32-bit floats of all positions."""
    asked = recipe.export.generation or ExportGeneration()
    cache = generation.cache if generation else asked.cache
    if cache != "float32":
        yield ReasonedChoice(name="cache", value=cache, reason=_CACHES[cache], by_hand=True)
    if asked.window is not None:
        sees = f"the last {asked.window:,} positions"
        if asked.sinks:
            sees += f" and the first {asked.sinks:,}"
        reason = f"a token sees {sees} of the text, and the cache has room for these"
        yield ReasonedChoice(name="window", value=str(asked.window), reason=reason, by_hand=True)


def _layout_of(recipe: Recipe, generation: Generation | None) -> Layout:
    if generation:
        return generation.layout
    return layout_for(recipe.export.generation or ExportGeneration())


def _layout(recipe: Recipe, generation: Generation | None) -> Iterator[ReasonedChoice]:
    """Only where it is not etdeploy's own."""
    if _layout_of(recipe, generation) == "executorch":
        reason = (
            "one method forward for prompts and single tokens, as ExecuTorch's own runner calls it "
            "(LlmModule, TextRunner); etdeploy's runner calls it, too"
        )
        yield ReasonedChoice(name="layout", value="executorch", reason=reason)


def _looks_at(generation: Generation, method: GenerationMethod) -> str:
    if generation.attention == "kernel":
        return f"its attention looks at what is filled of {generation.context:,} positions"
    if generation.static_cache:
        padded = ", after padding where there are fewer" if method.max_tokens > 1 else ""
        return f"its attention looks at {generation.context:,} positions through a mask{padded}"
    return (
        f"its attention looks at {method.capacity:,} of {generation.context:,} positions, whatever "
        "the position is"
    )


def _path(recipe: Recipe, generation: Generation | None) -> ReasonedChoice:
    asked = recipe.export.generation
    wanted = asked.path if asked else "auto"
    if generation:
        value, reason = generation.path, generation.path_reason.rstrip(".")
        return ReasonedChoice(name="path", value=value, reason=reason[0].lower() + reason[1:])
    if has_cross_attention(recipe.model.task):
        return ReasonedChoice(name="path", value="fast", reason=ENCODED_ONCE)
    if wanted == "auto" and backend_named(recipe.export.backend).static_cache:
        reason = (
            f"{recipe.export.backend} keeps no state between calls: keys and values are inputs and "
            "outputs of the program if the export finds the model's logits unchanged; otherwise "
            "they are copied for each token"
        )
        return ReasonedChoice(name="path", value="static, fast or plain", reason=reason)
    if wanted == "auto":
        reason = (
            "export.generation.path is auto: fast where the model's logits there are those of its "
            "own forward, else plain; the export compares them"
        )
        return ReasonedChoice(name="path", value="fast or plain", reason=reason)
    return ReasonedChoice(
        name="path", value=wanted, reason=f"export.generation.path is {wanted}", by_hand=True
    )


def rewrite_choices(
    recipe: Recipe, chosen: Chosen, found: Mapping[str, Any] | None
) -> tuple[ReasonedChoice, ...]:
    """One entry for each rewrite that the backend has."""
    asked = recipe.export.rewrites
    named = () if isinstance(asked, str) else {*asked} & {*chosen.names}
    return tuple(
        ReasonedChoice(name=name, value=value, reason=reason, by_hand=name in named)
        for name, value, reason in _entries(chosen, found)
    )


def _entries(chosen: Chosen, found: Mapping[str, Any] | None) -> Iterator[tuple[str, str, str]]:
    for name in (each for each in REWRITES if each in {*chosen.names, *chosen.left_out}):
        if name in chosen.left_out:
            yield name, "off", chosen.left_out[name]
        elif found is None:
            yield name, "on", f"it {REWRITES[name].summary}"
        elif "dropped" in found:
            yield name, "dropped", f"exported without rewrites, since {found['dropped']}"
        else:
            yield name, *_done(name, found)


def _done(name: str, found: Mapping[str, Any]) -> tuple[str, str]:
    places = found["applied"].get(name, 0)
    reasons = dict.fromkeys(each["reason"] for each in found["left"] if each["rewrite"] == name)
    left = f"some operators are left unchanged: {'; '.join(reasons)}" if reasons else ""
    if not places:
        return "not used", left or "no part of the model matches"
    done = f"it {REWRITES[name].summary}"
    return f"used {places} x", f"{done}; {left}" if left else done
