"""Rules between the sections of a recipe."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from etdeploy.backends.registry import find_backend
from etdeploy.backends.schemes import (
    AUTO_SCALED,
    AWQ,
    DEFAULT,
    FLOAT_SCHEMES,
    NEAREST,
    SEARCHED_SCHEMES,
    STATIC_SCHEMES,
    UNSCALED,
)
from etdeploy.recipe.llm_config import contradictions
from etdeploy.recipe.rules.common import (
    LANGUAGE_MODELS,
    MODEL_SOURCES,
    NAMED_ADAPTERS,
    OTHER_LAYOUT,
    RecipeFinding,
    backends_where,
    calibrated_methods,
    keys_of,
    schemes_in,
)
from etdeploy.recipe.rules.sections import OF_HF, ONE_SOURCE
from etdeploy.recipe.tasks import (
    TASKS,
    TEXT_GENERATION,
    config_here,
    generates,
    has_cross_attention,
    has_encoder,
)

if TYPE_CHECKING:
    from etdeploy.backends.base import Backend

_KNOWN = {*MODEL_SOURCES, "weights", "arguments", "merge", *OF_HF}
# A finished program may be one that generates text.
_GENERATES = ("benchmark", "program")
# Keys that say how one method with example inputs is measured: text is generated with all methods.
_OF_ONE_METHOD = ("sizes", "inputs", "method")


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
        yield "model", ONE_SOURCE  # an unknown key, most likely a misspelt source, is reported
    elif (
        sources
        and sources[0] in LANGUAGE_MODELS
        and generates(model.get("task") or TEXT_GENERATION, export.get("generation"))
    ):
        for key in _OF_ONE_METHOD:
            if benchmark.get(key):
                yield f"benchmark.{key}", "a language model is measured by `benchmark.generation`"
        yield from _language_findings(export, model.get("task") or TEXT_GENERATION)
        if keys_of(export.get("generation")).get("layout") == "executorch":
            yield from _misfits_of_layout(model)
        if has_encoder(model.get("task")):
            yield from _encoder_findings(model, export, keys_of(benchmark.get("generation")))
    elif sources:
        yield from _findings_without_text(model, sources[0], export, benchmark)
    yield from _input_findings(model, keys_of(benchmark.get("input")))
    yield from _adapter_findings(model, export, keys_of(benchmark.get("generation")))


def _misfits_of_layout(model: Mapping[str, Any]) -> Iterator[RecipeFinding]:
    """What one method `forward` of tokens and their position cannot have."""
    if has_encoder(model.get("task")):
        yield (
            "export.generation.layout",
            f"ExecuTorch's runner of texts calls no encoder, and the task {model['task']} has one; "
            f"{OTHER_LAYOUT}",
        )
    if model.get("merge") is False:
        yield (
            "export.generation.layout",
            "adapters that are not merged have methods of their own, and ExecuTorch's runner calls "
            f"forward alone; leave model.merge out, or {OTHER_LAYOUT}",
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
    schemes = schemes_in(export)
    searched = schemes & {*SEARCHED_SCHEMES} and not schemes & {*STATIC_SCHEMES}
    if export.get("calibration") is not None and searched:
        scheme = export.get("quantization")
        text = f"quantization {scheme!r} uses calibration for a language model only"
        yield "export.calibration", text
    for key, method, _ in calibrated_methods(export):
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
    if keys_of(export.get("generation")).get("cache") not in (None, "float32"):
        text = f"a cache of less than 32 bits is for the task {TEXT_GENERATION}, not {task}"
        yield "export.generation.cache", f"{text}; leave it at float32"
    if model.get("lora") is not None:
        yield "model.lora", f"adapters are for the task {TEXT_GENERATION}, not {task}"
    sections = {
        "export": export,
        "export.generation": keys_of(export.get("generation")),
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
    chosen, adapters = generation.get("lora"), keys_of(model.get("lora"))
    if chosen is None or (model.get("merge") is False and chosen in adapters):
        return
    if adapters and model.get("merge") is False:
        text = f"there is no adapter {chosen!r}; model.lora has {', '.join(map(str, adapters))}"
    elif model.get("lora") is not None:
        text = (
            "the adapter of model.lora is merged with the model, so none can be chosen; to keep "
            f"adapters apart: model.merge: false, with model.{NAMED_ADAPTERS}"
        )
    else:
        named = f"model.{NAMED_ADAPTERS}, model.merge: false"
        text = f"the model has no adapter {chosen!r}; name it with {named}"
    yield "benchmark.generation.lora", text


def _language_findings(export: Mapping[str, Any], task: str) -> Iterator[RecipeFinding]:
    """Ranges of activations would be those of one example: buffers have no calibration inputs."""
    scheme = export.get("quantization")
    backend = find_backend(str(export.get("backend") or DEFAULT))
    path = keys_of(export.get("generation")).get("path") or "auto"
    if backend and backend.static_cache and path in ("auto", "static") and task == TEXT_GENERATION:
        return
    if export.get("overrides") and backend and backend.overrides and not _mixes(backend):
        yield (
            "export.overrides",
            f"the overrides of {backend.name} need calibration inputs, and a language model takes "
            f"none; for such a model, overrides apply to {backends_where(_mixes)} only",
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
