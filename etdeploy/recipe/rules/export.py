"""Rules between the keys of the section `export`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from etdeploy.backends.options import option_problems
from etdeploy.backends.registry import find_backend
from etdeploy.backends.schemes import (
    DEFAULT,
    EMBEDDINGS_BESIDE,
    FLOAT_SCHEMES,
    GROUPED_EMBEDDINGS,
    GROUPED_SCHEMES,
    LINEAR_SCHEMES,
    SEARCHED_SCHEMES,
    STATIC_SCHEMES,
    bits_in_groups,
)
from etdeploy.recipe.rules.common import (
    DEFAULT_EVALUATED,
    DEFAULT_GROUP_SIZE,
    DEFAULT_SINKS,
    OTHER_LAYOUT,
    RecipeFinding,
    backends_where,
    calibrated_methods,
    keys_of,
    scheme_in,
    schemes_in,
)

if TYPE_CHECKING:
    from etdeploy.backends.base import Backend


def export_rules(section: Mapping[str, Any]) -> Iterator[RecipeFinding]:
    """The rules of the section `export`."""
    backend = find_backend(str(section.get("backend") or DEFAULT))
    scheme = section.get("quantization") or "none"
    if backend and isinstance(scheme, str) and scheme not in backend.quantizations:
        has = ", ".join(backend.quantizations)
        yield (
            "quantization",
            f"the backend {backend.name} does not support quantization {scheme!r}; "
            f"choose from {has}",
        )
    overrides = section.get("overrides")
    if backend and isinstance(overrides, Mapping):
        yield from _override_findings(backend, scheme, overrides)
    yield from _rewrite_findings(backend, section.get("rewrites"))
    if section.get("calibration") is not None and not (
        schemes_in(section) & {*STATIC_SCHEMES, *SEARCHED_SCHEMES}
    ):
        yield "calibration", f"quantization {scheme!r} does not use calibration inputs"
    yield from _rounding_findings(section, scheme)
    yield from _size_findings(section)
    yield from _embedding_findings(backend, scheme, section.get("embeddings"))
    yield from _group_findings(section, scheme)
    options = section.get("options")
    if backend and isinstance(options, Mapping):
        for name, text in option_problems(backend.name, backend.options, options):
            yield f"options.{name}", text
    generation = keys_of(section.get("generation"))
    yield from _prefill_findings(generation)
    yield from _evaluation_findings(section)
    yield from _attention_findings(backend, generation)
    yield from _cache_findings(backend, generation)
    yield from _window_findings(backend, generation)
    yield from _static_findings(backend, generation)
    yield from _layout_findings(backend, generation)
    if section.get("soc") not in (None, "auto") and backend and not backend.socs:
        yield "soc", f"soc applies to the backend {backends_where(lambda b: b.socs)} only"


def _rewrite_findings(backend: Backend | None, rewrites: object) -> Iterator[RecipeFinding]:
    if backend is None or not isinstance(rewrites, list | tuple):
        return
    if not backend.rewrites:
        those = backends_where(lambda b: b.rewrites)
        yield (
            "rewrites",
            f"the backend {backend.name} has no rewrites; they apply to {those} only",
        )


def _rounding_findings(section: Mapping[str, Any], scheme: object) -> Iterator[RecipeFinding]:
    for key, method, does in calibrated_methods(section):
        schemes = {scheme} if key == "target_bits" else schemes_in(section)
        if not schemes & {*SEARCHED_SCHEMES}:
            those = " or ".join(map(repr, SEARCHED_SCHEMES))
            yield (
                key,
                f"{method} {does} the 4-bit weights of {those}, and quantization {scheme!r} has "
                "none",
            )
        elif section.get("calibration") == "none":
            yield (
                key,
                f"{method} needs a text, and export.calibration is none; leave that out, or name "
                "a file",
            )


def _size_findings(section: Mapping[str, Any]) -> Iterator[RecipeFinding]:
    target = section.get("target_bits")
    size = section.get("group_size") or DEFAULT_GROUP_SIZE
    if not (isinstance(target, float | int) and isinstance(size, int) and size >= 32):
        return
    if section.get("quantization") in SEARCHED_SCHEMES and target < (least := bits_in_groups(size)):
        fits = next((s for s in (64, 128, 256) if s > size and bits_in_groups(s) <= target), None)
        other = f", or export.group_size to {fits}" if fits else ""
        yield (
            "target_bits",
            f"4-bit weights in groups of {size} have {least:g} bits with their scales, more than "
            f"{target:g}; set export.target_bits to {least:g} or more{other}",
        )


def _embedding_findings(
    backend: Backend | None, scheme: object, embeddings: object
) -> Iterator[RecipeFinding]:
    if embeddings in (None, "none") or backend is None:
        return
    if not backend.embeddings:
        those = backends_where(lambda b: b.embeddings)
        yield (
            "embeddings",
            f"a program for the backend {backend.name} has its tables of embeddings in floats; "
            f"embeddings apply to {those} only",
        )
    elif scheme not in EMBEDDINGS_BESIDE and scheme in backend.quantizations:
        these = [name for name in EMBEDDINGS_BESIDE if name in backend.quantizations]
        yield (
            "embeddings",
            f"with quantization {scheme!r}, tables of embeddings stay in floats; the quantization "
            f"has to be one of {', '.join(these)}",
        )


def _group_findings(section: Mapping[str, Any], scheme: object) -> Iterator[RecipeFinding]:
    chosen = keys_of(section.get("overrides"))
    grouped = bool(schemes_in(section) & {*GROUPED_SCHEMES})
    grouped |= section.get("embeddings") in GROUPED_EMBEDDINGS
    if section.get("group_size") not in (None, DEFAULT_GROUP_SIZE) and not grouped:
        yield "group_size", _no_groups(scheme)
    for pattern, part in chosen.items():
        if keys_of(part).get("group_size") and scheme_in(part) not in GROUPED_SCHEMES:
            yield f"overrides.{pattern}", _no_groups(scheme_in(part))


def _no_groups(scheme: object) -> str:
    with_groups = " and ".join(repr(name) for name in GROUPED_SCHEMES)
    return f"quantization {scheme!r} does not use groups; only {with_groups} do"


def _override_findings(
    backend: Backend, scheme: object, overrides: Mapping[Any, Any]
) -> Iterator[RecipeFinding]:
    given = {pattern: scheme_in(part) for pattern, part in overrides.items() if part is not None}
    choices = backend.mixed_with(scheme)
    if given and not backend.overrides:
        those = backends_where(lambda b: b.overrides)
        yield (
            "overrides",
            f"the backend {backend.name} quantizes the whole model by one scheme; overrides apply "
            f"to {those} only",
        )
    elif given and not choices:
        whole = ", ".join(name for name in backend.quantizations if backend.mixed_with(name))
        yield (
            "overrides",
            f"with quantization {scheme!r}, {backend.name} has no overrides; the quantization has "
            f"to be one of {whole}",
        )
    else:
        for pattern, chosen in given.items():
            if chosen not in choices:
                floats = "leaves no part of a quantized model in floats" * (chosen in FLOAT_SCHEMES)
                why = floats or f"does not mix {chosen!r} with {scheme!r}"
                text = f"the backend {backend.name} {why}; choose from {', '.join(choices)}"
                yield f"overrides.{pattern}", text


def _prefill_findings(generation: Mapping[str, Any]) -> Iterator[RecipeFinding]:
    prefill, context = generation.get("prefill_tokens"), generation.get("context")
    if isinstance(prefill, int) and isinstance(context, int) and prefill > context:
        yield (
            "generation.prefill_tokens",
            f"{prefill} tokens at once do not fit into a context of {context}; "
            f"set export.generation.prefill_tokens to {context} or less",
        )


def _evaluation_findings(export: Mapping[str, Any]) -> Iterator[RecipeFinding]:
    generation = keys_of(export.get("generation"))
    if generation.get("evaluate_tokens") in (None, DEFAULT_EVALUATED):
        return
    rounded = generation.get("cache") not in (None, "float32")
    bundled = rounded or export.get("quantization") in LINEAR_SCHEMES  # has a text without the key
    if generation.get("evaluate") in (("none",) if bundled else (None, "none")):
        yield (
            "generation.evaluate_tokens",
            "there is no text to evaluate; also set export.generation.evaluate",
        )


def _static_findings(
    backend: Backend | None, generation: Mapping[str, Any]
) -> Iterator[RecipeFinding]:
    """Keys of the path static, for another one."""
    path, methods = generation.get("path") or "auto", generation.get("methods") or "hybrid"
    is_static = backend is None or (backend.static_cache and path in ("auto", "static"))
    if is_static or (path != "static" and methods == "hybrid"):
        return
    those = backends_where(lambda b: b.static_cache)
    if path == "static":
        text = f"the path static is for backends that keep no state between calls: {those}"
        yield "generation.path", text
    if methods != "hybrid":
        text = f"{methods} is for the path static, which is for the backends {those}"
        yield "generation.methods", text


def _layout_findings(
    backend: Backend | None, generation: Mapping[str, Any]
) -> Iterator[RecipeFinding]:
    """ExecuTorch's own runner keeps no keys and values: the program has to."""
    if generation.get("layout") != "executorch":
        return
    if backend and backend.static_cache and (generation.get("path") or "auto") != "plain":
        yield (
            "generation.layout",
            f"{backend.name} keeps no state between calls, so keys and values are inputs and "
            "outputs of the program, which ExecuTorch's runner of texts does not give; "
            f"{OTHER_LAYOUT}",
        )


def _attention_findings(
    backend: Backend | None, generation: Mapping[str, Any]
) -> Iterator[RecipeFinding]:
    if generation.get("attention") != "kernel":
        return
    if backend and not backend.own_kernels:
        those = backends_where(lambda b: b.own_kernels)
        yield (
            "generation.attention",
            f"etdeploy's kernel runs on the CPU, and {backend.name} computes elsewhere; it applies "
            f"to the backends {those} only",
        )
    if generation.get("path") == "plain":
        yield (
            "generation.attention",
            "the path plain has transformers' attention; leave export.generation.path at auto",
        )


# What only reads a cache of floats, by the key that chooses it: its values, and why.
_FLOATS_ONLY = (
    ("path", ("plain", "static"), "has another attention, which reads"),
    ("attention", ("stock",), "is operators of ExecuTorch, which read"),
    ("layout", ("executorch",), "has operators of ExecuTorch, which read"),
)


def _cache_findings(
    backend: Backend | None, generation: Mapping[str, Any]
) -> Iterator[RecipeFinding]:
    """Only etdeploy's kernel reads keys and values of less than 32 bits."""
    cache = generation.get("cache")
    if cache in (None, "float32"):
        return
    floats = "32-bit floats only"
    if backend and not backend.own_kernels:
        those = backends_where(lambda b: b.own_kernels)
        yield (
            "generation.cache",
            f"{cache} is for etdeploy's attention kernel, which runs on the CPU, and "
            f"{backend.name} computes elsewhere; leave the cache at float32, or choose from the "
            f"backends {those}",
        )
        return
    for key, values, why in _FLOATS_ONLY:
        if (value := generation.get(key)) in values:
            yield (
                "generation.cache",
                f"{cache} is for etdeploy's attention kernel, and the {key} {value} {why} "
                f"{floats}; leave export.generation.{key} at auto, or the cache at float32",
            )


def _window_findings(
    backend: Backend | None, generation: Mapping[str, Any]
) -> Iterator[RecipeFinding]:
    """Sinks need a window, and a backend with a static cache takes none, whatever the path.

    ExecuTorch 1.5.1's passes for QNN fail at the remainder of a position in a window: a constant is
    used before it is defined.
    """
    window, sinks = generation.get("window"), generation.get("sinks")
    if window is None:
        if sinks is not None and sinks != DEFAULT_SINKS:
            yield "generation.sinks", "every token sees all positions; also set window"
        return
    if backend and backend.static_cache:
        yield (
            "generation.window",
            f"{backend.name} takes no window; leave it out, or choose another backend",
        )
