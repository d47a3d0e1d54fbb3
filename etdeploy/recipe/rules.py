"""Rules between the keys of one section; the models check single keys.

The rules read plain data, so that broken rules are reported together with every other problem
of the section. A key that is missing or None has its default; the models check the types.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from etdeploy.backends.options import option_problems
from etdeploy.backends.registry import find_backend, known_backends
from etdeploy.backends.schemes import (
    AUTO_SCALED,
    AWQ,
    DEFAULT,
    EMBEDDINGS_BESIDE,
    FLOAT_SCHEMES,
    GPTQ,
    GROUPED_EMBEDDINGS,
    GROUPED_SCHEMES,
    LINEAR_SCHEMES,
    NEAREST,
    SEARCHED_SCHEMES,
    STATIC_SCHEMES,
    UNSCALED,
    bits_in_groups,
)
from etdeploy.core.errors import EtdeployError
from etdeploy.recipe.llm_config import contradictions
from etdeploy.recipe.tasks import (
    TASKS,
    TEXT_GENERATION,
    TIMM_TASKS,
    config_here,
    generates,
    has_cross_attention,
    has_encoder,
)
from etdeploy.targets.platforms import android_id_problem

if TYPE_CHECKING:
    from etdeploy.backends.base import Backend
    from etdeploy.recipe.model import Recipe


MODEL_SOURCES = ("example", "python", "exported", "program", "hf", "timm", "gguf", "checkpoint")
# Those of models that transformers loads, of which most generate text.
LANGUAGE_MODELS = ("hf", "gguf", "checkpoint")
DEFAULT_GROUP_SIZE = 32
DEFAULT_EVALUATED = 512
DEFAULT_SINKS = 4
# Keys that need a build of ExecuTorch itself, with the value that needs none.
BUILD_KEYS: Mapping[str, Any] = {
    "source": None,
    "thread_pool": "default",
    "optimize": "speed",
    "log_level": "error",
    "kleidiai": None,
    "weight_cache": False,
    "cmake": {},
}
# Keys of `model` that say more about one of transformers.
_OF_HF = ("revision", "task", "remote_code", "lora")
_NAMED = "lora: {NAME: FOLDER}"
_ONE_SOURCE = f"name one model source: {', '.join(MODEL_SOURCES[:-1])} or {MODEL_SOURCES[-1]}"
_KNOWN = {*MODEL_SOURCES, "weights", "arguments", "merge", *_OF_HF}
# A finished program may be one that generates text.
_GENERATES = ("benchmark", "program")
# Keys that say how one method with example inputs is measured: text is generated with all methods.
_OF_ONE_METHOD = ("sizes", "inputs", "method")
_CMAKE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TEAM = re.compile(r"[A-Z0-9]{10}")
_SIZE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")

# What a finding is about (a key, a key of a key after a dot, empty for the whole section), and the
# finding. Only the first dot divides: a pattern of modules has dots of its own.
RecipeFinding = tuple[str, str]


def model_rules(section: Mapping[str, Any]) -> Iterator[RecipeFinding]:
    """The rules of the section `model`."""
    given = [name for name in MODEL_SOURCES if section.get(name) is not None]
    if not given:
        return  # `recipe_rules` knows whether the recipe names its model elsewhere.
    if len(given) != 1:
        yield "", f"{_ONE_SOURCE}; {len(given)} are given: {', '.join(given)}"
        return
    if section.get("weights") is not None and given != ["python"]:
        yield "weights", "weights need a `python` model source"
    if section.get("arguments") and given[0] not in ("python", "example"):
        yield "arguments", "arguments need a `python` or `example` source"
    yield from _hf_findings(section)


def _hf_findings(section: Mapping[str, Any]) -> Iterator[RecipeFinding]:
    if section.get("merge") is False and not isinstance(section.get("lora"), Mapping):
        yield "merge", f"adapters that are not merged need names, to choose one: {_NAMED}"
    model, code = section.get("hf"), section.get("remote_code")
    file = section.get("gguf") or section.get("checkpoint")
    if section.get("params") is not None and section.get("checkpoint") is None:
        yield "params", "params belong to a `checkpoint`, and none is named"
    if model is None and file is None:
        yield from _findings_without_hf(section)
        return
    if section.get("revision") is not None and str(model or file).startswith("/"):
        kind = "folder" if model else "file"
        yield "revision", f"a {kind} on this machine has no revisions, and {model or file} is one"
    if code is not None and model is None:
        yield "remote_code", "no code in that file is run, so there is nothing to allow"
    elif code is not None and code != model:
        yield (
            "remote_code",
            f"code runs only for the model that is named here, {code!r}, and `hf` is {model!r}",
        )


def _findings_without_hf(section: Mapping[str, Any]) -> Iterator[RecipeFinding]:
    timm, task = section.get("timm"), section.get("task")
    named = timm or section.get("program")
    allowed = ["revision"] if named and not str(named).startswith("/") else []
    allowed += ["task"] if timm else []
    for key in (key for key in _OF_HF if key not in allowed):
        if section.get(key) is None:
            continue
        if timm and key == "revision":
            yield key, f"a folder on this machine has no revisions, and {timm} is one"
        else:
            yield key, "this key is about a model of `hf`, and none is named"
    if timm and task in TASKS and task not in TIMM_TASKS:
        yield "task", f"a model of timm is for {' or '.join(TIMM_TASKS)}, not {task}"


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
        _schemes_in(section) & {*STATIC_SCHEMES, *SEARCHED_SCHEMES}
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
    generation = _keys_of(section.get("generation"))
    yield from _prefill_findings(generation)
    yield from _evaluation_findings(section)
    yield from _attention_findings(backend, generation)
    yield from _cache_findings(backend, generation)
    yield from _window_findings(backend, generation)
    yield from _static_findings(backend, generation)
    yield from _layout_findings(backend, generation)
    if section.get("soc") not in (None, "auto") and backend and not backend.socs:
        yield "soc", f"soc applies to the backend {_backends_where(lambda b: b.socs)} only"


def _backends_where(has: Callable[[Backend], object]) -> str:
    """The names of the backends that a recipe can name and that have something, for a message."""
    return ", ".join(b.name for b in known_backends() if b.lowering and has(b))


def _rewrite_findings(backend: Backend | None, rewrites: object) -> Iterator[RecipeFinding]:
    if backend is None or not isinstance(rewrites, list | tuple):
        return
    if not backend.rewrites:
        those = _backends_where(lambda b: b.rewrites)
        yield (
            "rewrites",
            f"the backend {backend.name} has no rewrites; they apply to {those} only",
        )


# Methods that read a text, by the key that names them, and what they do to 4-bit weights. A key
# without the name of a method has a number.
_CALIBRATED: Mapping[str, tuple[str | None, str]] = {
    "rounding": (GPTQ, "rounds"),
    "scaling": (AWQ, "scales the inputs of"),
    "target_bits": (None, "chooses more bits for some of"),
}


def _calibrated_methods(export: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """The methods that a section names: the key, the method in messages, and what it does."""
    for key, (method, does) in _CALIBRATED.items():
        value = export.get(key)
        if value is not None and (method is None or value == method):
            yield key, method or key, does


def _rounding_findings(section: Mapping[str, Any], scheme: object) -> Iterator[RecipeFinding]:
    for key, method, does in _calibrated_methods(section):
        schemes = {scheme} if key == "target_bits" else _schemes_in(section)
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
        those = _backends_where(lambda b: b.embeddings)
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
    chosen = _keys_of(section.get("overrides"))
    grouped = bool(_schemes_in(section) & {*GROUPED_SCHEMES})
    grouped |= section.get("embeddings") in GROUPED_EMBEDDINGS
    if section.get("group_size") not in (None, DEFAULT_GROUP_SIZE) and not grouped:
        yield "group_size", _no_groups(scheme)
    for pattern, part in chosen.items():
        if _keys_of(part).get("group_size") and _scheme_in(part) not in GROUPED_SCHEMES:
            yield f"overrides.{pattern}", _no_groups(_scheme_in(part))


def _no_groups(scheme: object) -> str:
    with_groups = " and ".join(repr(name) for name in GROUPED_SCHEMES)
    return f"quantization {scheme!r} does not use groups; only {with_groups} do"


def _schemes_in(export: Mapping[str, Any]) -> set[object]:
    """All schemes of a section `export`: those of parts, too."""
    parts = _keys_of(export.get("overrides")).values()
    return {export.get("quantization") or "none", *map(_scheme_in, parts)}


def _scheme_in(chosen: object) -> object:
    """The scheme of an override, which may have a group size beside it."""
    return chosen if isinstance(chosen, str) else _keys_of(chosen).get("quantization")


def _override_findings(
    backend: Backend, scheme: object, overrides: Mapping[Any, Any]
) -> Iterator[RecipeFinding]:
    given = {pattern: _scheme_in(part) for pattern, part in overrides.items() if part is not None}
    choices = backend.mixed_with(scheme)
    if given and not backend.overrides:
        those = _backends_where(lambda b: b.overrides)
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


def _keys_of(section: Any) -> Mapping[str, Any]:
    """The keys of a section in a section, of a file or of a model; empty for anything else."""
    return section if isinstance(section, Mapping) else getattr(section, "__dict__", {})


def _prefill_findings(generation: Mapping[str, Any]) -> Iterator[RecipeFinding]:
    prefill, context = generation.get("prefill_tokens"), generation.get("context")
    if isinstance(prefill, int) and isinstance(context, int) and prefill > context:
        yield (
            "generation.prefill_tokens",
            f"{prefill} tokens at once do not fit into a context of {context}; "
            f"set export.generation.prefill_tokens to {context} or less",
        )


def _evaluation_findings(export: Mapping[str, Any]) -> Iterator[RecipeFinding]:
    generation = _keys_of(export.get("generation"))
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
    those = _backends_where(lambda b: b.static_cache)
    if path == "static":
        text = f"the path static is for backends that keep no state between calls: {those}"
        yield "generation.path", text
    if methods != "hybrid":
        text = f"{methods} is for the path static, which is for the backends {those}"
        yield "generation.methods", text


_LAYOUT = "leave export.generation.layout at auto, or etdeploy"


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
            f"outputs of the program, which ExecuTorch's runner of texts does not give; {_LAYOUT}",
        )


def _attention_findings(
    backend: Backend | None, generation: Mapping[str, Any]
) -> Iterator[RecipeFinding]:
    if generation.get("attention") != "kernel":
        return
    if backend and not backend.own_kernels:
        those = _backends_where(lambda b: b.own_kernels)
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
        those = _backends_where(lambda b: b.own_kernels)
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


def runtime_rules(section: Mapping[str, Any]) -> Iterator[RecipeFinding]:
    """The rules of the section `runtime`."""
    if section.get("provider") == "wheel":
        for key in keys_needing_build(section):
            yield (
                key,
                "the provider `wheel` is prebuilt; this needs `provider: source` (or `auto`)",
            )
    if section.get("custom_ops_target") is not None and section.get("custom_ops") is None:
        yield "custom_ops_target", "also set custom_ops, the folder of its CMakeLists.txt"
    options = section.get("cmake")
    for name in options if isinstance(options, Mapping) else ():
        if not isinstance(name, str) or not _CMAKE_NAME.fullmatch(name):
            yield "cmake", f"{name!r} is not a valid name of a cmake option"
        elif name.startswith("ETDEPLOY_"):
            yield "cmake", f"{name} is set by the plan and cannot be overridden"


def benchmark_rules(section: Mapping[str, Any]) -> Iterator[RecipeFinding]:
    """The rules of the section `benchmark`."""
    sizes = section.get("sizes")
    for name in sizes if isinstance(sizes, Mapping) else ():
        if not _SIZE_NAME.fullmatch(name):
            yield (
                f"sizes.{name}",
                "the name of a size is part of file names: use up to 32 letters, digits, dashes "
                "and underscores",
            )
    if section.get("inputs") is not None and not sizes:
        yield "inputs", "this function makes the inputs for `sizes`, and there are none"
    yield from _sampling_findings(_keys_of(section.get("generation")))


def _sampling_findings(generation: Mapping[str, Any]) -> Iterator[RecipeFinding]:
    if generation.get("temperature"):
        return
    for key, of_all in (("top_k", 0), ("top_p", 1), ("min_p", 0)):
        if generation.get(key) not in (None, of_all):
            text = "nothing is drawn with temperature 0; also set benchmark.generation.temperature"
            yield f"generation.{key}", text


def app_rules(section: Mapping[str, Any]) -> Iterator[RecipeFinding]:
    """The rules of the section `app`."""
    if isinstance(app_id := section.get("id"), str) and (wrong := android_id_problem(app_id)):
        yield "id", f"{app_id!r} is not an app ID: {wrong}"
    team = section.get("team")
    if isinstance(team, str) and not _TEAM.fullmatch(team):
        yield "team", f"{team!r} is not a team: Apple's have 10 capital letters and digits"
    name = section.get("name")
    if isinstance(name, str) and (not name.isprintable() or not name.strip()):
        yield "name", "the name needs letters or digits, and no control characters"
    if section.get("aar") and section.get("build") == "gradle":
        yield "aar", "Gradle downloads ExecuTorch's release itself; this is for `build: sdk`"


def recipe_rules(sections: Mapping[str, Any]) -> Iterator[RecipeFinding]:
    """The rules between sections; findings are about keys of the whole recipe."""
    model, export, benchmark = (
        section if isinstance(section := sections.get(name), Mapping) else {}
        for name in ("model", "export", "benchmark")
    )
    sources = [name for name in MODEL_SOURCES if model.get(name) is not None]
    config = export.get("llm_config")
    if config is not None:
        if isinstance(config, Mapping):
            yield from contradictions(config, model, export)
    elif not sources and "model" in sections and not model.keys() - _KNOWN:
        yield "model", _ONE_SOURCE  # an unknown key, most likely a misspelt source, is reported
    elif (
        sources
        and sources[0] in LANGUAGE_MODELS
        and generates(model.get("task") or TEXT_GENERATION, export.get("generation"))
    ):
        for key in _OF_ONE_METHOD:
            if benchmark.get(key):
                yield f"benchmark.{key}", "a language model is measured by `benchmark.generation`"
        yield from _language_findings(export, model.get("task") or TEXT_GENERATION)
        if _keys_of(export.get("generation")).get("layout") == "executorch":
            yield from _misfits_of_layout(model)
        if has_encoder(model.get("task")):
            yield from _encoder_findings(model, export, _keys_of(benchmark.get("generation")))
    elif sources:
        yield from _findings_without_text(model, sources[0], export, benchmark)
    yield from _input_findings(model, _keys_of(benchmark.get("input")))
    yield from _adapter_findings(model, export, _keys_of(benchmark.get("generation")))


def _misfits_of_layout(model: Mapping[str, Any]) -> Iterator[RecipeFinding]:
    """What one method `forward` of tokens and their position cannot have."""
    if has_encoder(model.get("task")):
        yield (
            "export.generation.layout",
            f"ExecuTorch's runner of texts calls no encoder, and the task {model['task']} has one; "
            f"{_LAYOUT}",
        )
    if model.get("merge") is False:
        yield (
            "export.generation.layout",
            "adapters that are not merged have methods of their own, and ExecuTorch's runner calls "
            f"forward alone; leave model.merge out, or {_LAYOUT}",
        )


def _input_findings(model: Mapping[str, Any], given: Mapping[str, Any]) -> Iterator[RecipeFinding]:
    """What a model is given is of the kinds that its task takes."""
    named = [key for key, value in given.items() if value is not None]
    task = model.get("task")
    if not named:
        return
    if task not in TASKS:
        if task is None:  # a task that does not exist is reported at its key
            text = "this section is for a model of `hf` or `timm`, whose processor reads it"
            yield "benchmark.input", text
        return
    takes: tuple[str, ...] = () if task == TEXT_GENERATION else TASKS[str(task)].modalities
    takes = ("image",) if model.get("timm") else takes
    for key in named:
        if key == "language" and takes:
            if not has_cross_attention(task):
                yield f"benchmark.input.{key}", f"models of the task {task} know no languages"
            continue
        if takes and key not in takes:
            text = f"the task {task} takes {' and '.join(takes)}, not {key}"
            yield f"benchmark.input.{key}", text
        elif not takes:
            text = "a language model continues a prompt: benchmark.generation.prompt has its text"
            if model.get("hf") and config_here(str(model["hf"])) is None:
                text += (
                    "; the config.json of this model is not on this machine: --set model.task=TASK "
                    "if its task is another"
                )
            yield f"benchmark.input.{key}", text


def _findings_without_text(
    model: Mapping[str, Any], source: str, export: Mapping[str, Any], benchmark: Mapping[str, Any]
) -> Iterator[RecipeFinding]:
    task = model.get("task")
    kind = f"the task {task}" if task else f"`{source}`"
    schemes = _schemes_in(export)
    searched = schemes & {*SEARCHED_SCHEMES} and not schemes & {*STATIC_SCHEMES}
    if export.get("calibration") is not None and searched:
        scheme = export.get("quantization")
        text = f"quantization {scheme!r} uses calibration for a language model only"
        yield "export.calibration", text
    for key, method, _ in _calibrated_methods(export):
        if searched:
            yield f"export.{key}", f"{method} needs a text, which only a language model reads"
    if isinstance(export.get("calibration"), Mapping):
        text = "a language model reads texts and prompts; name a function that yields inputs"
        yield "export.calibration", text
    for name, section in (("export", export), ("benchmark", benchmark)):
        if section.get("generation") is not None and (name, source) != _GENERATES:
            text = f"this section is for a language model, and this model is of {kind}"
            yield f"{name}.generation", text


# What models with an encoder do not have: by a key, and the values that stand for nothing.
_PROMPTED: tuple[tuple[str, str, tuple[Any, ...]], ...] = (
    ("export", "calibration", ("none",)),
    ("export", "rounding", (NEAREST,)),
    ("export", "scaling", (AUTO_SCALED, UNSCALED)),
    ("export", "target_bits", ()),
    ("export.generation", "evaluate", ("none",)),
    ("export.generation", "window", ()),
    ("benchmark.generation", "prompt", ()),
    ("benchmark.generation", "depth", ([0], (0,), 0)),
)


# And where the decoder attends to it.
_ATTENDING: tuple[tuple[str, str, tuple[Any, ...]], ...] = (
    ("export.generation", "path", ("auto", "fast")),
    ("export.generation", "attention", ("auto", "stock")),
)


def _encoder_findings(
    model: Mapping[str, Any], export: Mapping[str, Any], benchmark: Mapping[str, Any]
) -> Iterator[RecipeFinding]:
    """The text of a model with an encoder follows from its input, and from no prompt."""
    task = model.get("task")
    if _keys_of(export.get("generation")).get("cache") not in (None, "float32"):
        text = f"a cache of less than 32 bits is for the task {TEXT_GENERATION}, not {task}"
        yield "export.generation.cache", f"{text}; leave it at float32"
    if model.get("lora") is not None:
        yield "model.lora", f"adapters are for the task {TEXT_GENERATION}, not {task}"
    sections = {
        "export": export,
        "export.generation": _keys_of(export.get("generation")),
        "benchmark.generation": benchmark,
    }
    for section, key, nothing in (*_PROMPTED, *(_ATTENDING if has_cross_attention(task) else ())):
        value = sections[section].get(key)
        if value is not None and value not in nothing:
            text = f"a model of the task {task} generates its text from benchmark.input"
            yield f"{section}.{key}", f"{text}, so {key} does not apply"


def _adapter_findings(
    model: Mapping[str, Any], export: Mapping[str, Any], generation: Mapping[str, Any]
) -> Iterator[RecipeFinding]:
    """The adapter that generates is one of those that the program has apart."""
    if export.get("scaling") == AWQ and model.get("merge") is False:
        yield (
            "export.scaling",
            f"adapters that are not merged read what {AWQ} scales; leave model.merge out, or "
            "export.scaling",
        )
    chosen, adapters = generation.get("lora"), _keys_of(model.get("lora"))
    if chosen is None or (model.get("merge") is False and chosen in adapters):
        return
    if adapters and model.get("merge") is False:
        text = f"there is no adapter {chosen!r}; model.lora has {', '.join(map(str, adapters))}"
    elif model.get("lora") is not None:
        text = (
            "the adapter of model.lora is merged with the model, so none can be chosen; to keep "
            f"adapters apart: model.merge: false, with model.{_NAMED}"
        )
    else:
        text = (
            f"the model has no adapter {chosen!r}; name it with model.{_NAMED}, model.merge: false"
        )
    yield "benchmark.generation.lora", text


def _language_findings(export: Mapping[str, Any], task: str) -> Iterator[RecipeFinding]:
    """Ranges of activations would be those of one example: buffers have no calibration inputs."""
    scheme = export.get("quantization")
    backend = find_backend(str(export.get("backend") or DEFAULT))
    path = _keys_of(export.get("generation")).get("path") or "auto"
    if backend and backend.static_cache and path in ("auto", "static") and task == TEXT_GENERATION:
        return
    if export.get("overrides") and backend and backend.overrides and not _mixes(backend):
        yield (
            "export.overrides",
            f"the overrides of {backend.name} need calibration inputs, and a language model takes "
            f"none; for such a model, overrides apply to {_backends_where(_mixes)} only",
        )
    if scheme not in STATIC_SCHEMES:
        return
    offered = [s for s in backend.quantizations if s not in STATIC_SCHEMES] if backend else []
    choice = f"choose from {', '.join(offered)}"
    if backend and backend.static_cache and task == TEXT_GENERATION:
        text = (
            f"{scheme!r} needs calibration inputs, which the path {path} of a language model does"
        )
        choice = f"leave export.generation.path at auto, or {choice}"
        yield "export.quantization", f"{text} not have; {choice}"
        return
    yield (
        "export.quantization",
        f"{scheme!r} needs calibration inputs, and a language model takes none; {choice}",
    )


def _mixes(backend: Backend) -> bool:
    """Whether it has overrides that quantize without calibration inputs."""
    return any(s not in STATIC_SCHEMES and s not in FLOAT_SCHEMES for s in backend.overrides)


def keys_needing_build(section: Mapping[str, Any]) -> list[str]:
    """The keys of the section `runtime` that need a build of ExecuTorch."""
    return [key for key, none in BUILD_KEYS.items() if section.get(key) not in (None, none)]


RULES: Mapping[str, Callable[[Mapping[str, Any]], Iterator[RecipeFinding]]] = {
    "model": model_rules,
    "export": export_rules,
    "runtime": runtime_rules,
    "benchmark": benchmark_rules,
    "app": app_rules,
}


def require(findings: Iterator[RecipeFinding]) -> None:
    """Raises unless no rule is broken."""
    messages = [f"{key}: {text}" if key else text for key, text in findings]
    if messages:
        raise ValueError("; ".join(messages))


_SETTING = r"--set export\.(\w+)=([^\s;,)]+)"
_BACKEND = re.compile(rf"--set export\.backend=\w+(?: {_SETTING})*")
# What a backend does not have leaves `null` at its default.
_WITHOUT = {
    "quantization": "none",
    "generation.attention": "auto",
    "generation.cache": "float32",
}


@contextmanager
def remedies_for(recipe: Recipe) -> Iterator[None]:
    """Completes the remedy of an error that the block raises."""
    try:
        yield
    except EtdeployError as error:
        error.remedy = error.remedy and with_settings(error.remedy, recipe)
        raise


def with_settings(remedy: str, recipe: Recipe) -> str:
    """A remedy whose settings of `export.backend` can be given as they are."""
    export = recipe.export.model_dump()
    return _BACKEND.sub(lambda found: found[0] + "".join(_more(found[0], export)), remedy)


def _more(settings: str, export: Mapping[str, Any]) -> Iterator[str]:
    """The settings besides, one after the other: each may leave other rules broken."""
    given = dict(re.findall(_SETTING, settings))
    section = {**export, **{key: None if text == "null" else text for key, text in given.items()}}
    while True:
        found = {finding for finding, _ in export_rules(section)}
        broken = {each if each in _WITHOUT else each.partition(".")[0] for each in found}
        key = next((each for each in ("quantization", *sorted(broken)) if each in broken), None)
        if key is None or section.get(key) == _WITHOUT.get(key):
            return
        section[key] = _WITHOUT.get(key)
        owner, _, own = key.partition(".")
        if own:
            section[owner] = {**section[owner], own: _WITHOUT[key]}
        yield f" --set export.{key}={section[key] or 'null'}"
