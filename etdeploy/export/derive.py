"""Derives what an export depends on from a recipe."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from etdeploy.backends.options import option_values
from etdeploy.backends.registry import backend_named
from etdeploy.backends.rewrites import REWRITES, Chosen, chosen_rewrites
from etdeploy.backends.schemes import (
    AUTO_SCALED,
    GROUPED_EMBEDDINGS,
    GROUPED_SCHEMES,
    LINEAR_SCHEMES,
    NEAREST,
    SEARCHED_SCHEMES,
    STATIC_SCHEMES,
)
from etdeploy.core.errors import Problem, RecipeError
from etdeploy.export.spec import (
    CALIBRATION_TEXT,
    EVALUATION_TEXT,
    PARAMS,
    CodeReference,
    ExportSpec,
    HfModel,
    TaskInput,
)
from etdeploy.program.generation import attention_of, layout_for
from etdeploy.recipe.document import KeyPath, SourceLocation
from etdeploy.recipe.llm_config import llm_files, soc_in, with_files
from etdeploy.recipe.model import Recipe
from etdeploy.recipe.paths import NO_TEXT, hub_program
from etdeploy.recipe.sections.export import (
    CalibrationText,
    Export,
    ExportGeneration,
    PartQuantization,
)
from etdeploy.recipe.sections.model import Model
from etdeploy.recipe.tasks import has_encoder

# Keys of sections that the worker refuses with their places.
_PLACED = (
    ("sizes",), ("method",), ("overrides",), ("hf",), ("gguf",), ("revision",), ("remote_code",),
    ("timm",), ("lora",), ("generation",), ("calibration",), ("rounding",), ("scaling",),
    ("target_bits",),
    ("llm_config",), ("checkpoint",), ("program",), ("task",), ("input",),
)  # fmt: skip


def export_spec(
    recipe: Recipe,
    places: Mapping[KeyPath, SourceLocation] = MappingProxyType({}),
    arch: str | None = None,
) -> ExportSpec:
    """Takes from a recipe what determines the program.

    Args:
        recipe: Loaded, with absolute paths.
        places: Where its keys are, for messages.
        arch: The instruction set of the target; None where it is not known.

    Raises:
        RecipeError: A reference names no function, or a finished program cannot use it.
    """
    model, export, sizes = recipe.model, recipe.export, recipe.benchmark.sizes
    placed = {".".join(map(str, k)): str(p) for k, p in places.items() if k[1:2] in _PLACED}
    if model.program:
        _refuse_inputs(recipe, places)
        return ExportSpec(
            **_program(model.program, model.revision),
            seed=export.seed,
            sizes=sizes,
            places=placed,
            method=recipe.benchmark.method,
        )
    backend = backend_named(export.backend)
    if export.llm_config is not None:
        _refuse_inputs(recipe, places)
        return ExportSpec(
            **_llm_config(export.llm_config),
            backend=export.backend,
            quantization=export.quantization,
            soc=soc_in(export.llm_config) if backend.socs else None,
            options=option_values(backend.options, {}),
            seed=export.seed,
            sizes=sizes,
            places=placed,
            method=recipe.benchmark.method,
        )
    return ExportSpec(
        example=model.example,
        python=_reference("model.python", model.python),
        exported=model.exported,
        hf=_hf_model(model),
        task=model.task,
        input=_task_input(recipe),
        lora=tuple(_adapters_of(model).values()) if model.merge else (),
        adapters={} if model.merge else _adapters_of(model),
        generation=_generation(export) if recipe.is_language_model else None,
        weights=model.weights,
        arguments=model.arguments,
        backend=export.backend,
        quantization=export.quantization,
        overrides=_overrides(export),
        override_groups=_override_groups(export),
        embeddings=recipe.embeddings,
        calibration=None
        if recipe.is_language_model
        else _reference("export.calibration", _named_function(export)),
        calibration_text=_calibration_text(export) if recipe.is_language_model else None,
        calibration_prompts=_calibration_prompts(export) if recipe.is_language_model else None,
        rounding=export.rounding if recipe.is_language_model else NEAREST,
        scaling=export.scaling if recipe.is_language_model else AUTO_SCALED,
        target_bits=export.target_bits if recipe.is_language_model else None,
        group_size=export.group_size if _has_groups(recipe) else None,
        soc=export.soc if backend.socs else None,
        options=option_values(backend.options, export.options),
        rewrites=rewrites_of(recipe, arch).names,
        profiled=backend.profile_compiled and recipe.benchmark.profile,
        custom_ops=export.custom_ops,
        strict=export.strict,
        seed=export.seed,
        sizes=sizes,
        inputs=_reference("benchmark.inputs", recipe.benchmark.inputs),
        places=placed,
        method=recipe.benchmark.method,
    )


def rewrites_of(recipe: Recipe, arch: str | None) -> Chosen:
    """Which rewrites of the graph are tried, and why not the others.

    A language model without an encoder has its own formulation, which leaves little to rewrite;
    ExecuTorch's exporter has its own graph, and a finished program no longer has one.
    """
    export = recipe.export
    if recipe.model.program is not None or export.llm_config is not None:
        return Chosen()
    offered = backend_named(export.backend).rewrites
    if recipe.is_language_model and not has_encoder(recipe.model.task):
        offered = tuple(name for name in offered if REWRITES[name].for_texts)
    no_kernels = "" if _needs_kernels(recipe) else _ANY_RUNTIME
    return chosen_rewrites(export.rewrites, offered, export.quantization, arch, no_kernels)


_ANY_RUNTIME = "without it, any runtime can run the program; to use it, name it in export.rewrites"


def _needs_kernels(recipe: Recipe) -> bool:
    """Whether the program has etdeploy's kernel for attention, which only its runner has."""
    attention = attention_of(recipe)
    layout = layout_for(recipe.export.generation or ExportGeneration())
    return attention is not None and attention[0] == "kernel" and layout != "executorch"


def _program(named: str, revision: str | None) -> dict[str, Any]:
    """The fields of a spec for a finished program."""
    found = None if Path(named).is_absolute() else hub_program(named)
    if found is None:
        return {"program": named}
    model = HfModel(id=found[0], pte=found[1], revision=revision or "main")
    return {"hub_program": model}


def _llm_config(config: dict[str, Any]) -> dict[str, Any]:
    """The fields of a spec for an LlmConfig, whose files are named as on every machine."""
    files = dict(llm_files(config))
    names = {keys: Path(path).name for keys, path in files.items()}
    paths = {".".join(map(str, keys)): path for keys, path in files.items()}
    return {"llm_config": with_files(config, names), "llm_files": paths}


def _task_input(recipe: Recipe) -> TaskInput:
    given = recipe.benchmark.input
    return TaskInput(**given.model_dump()) if given else TaskInput()


def _overrides(export: Export) -> tuple[tuple[str, str], ...]:
    schemes = {pattern: chosen for pattern, chosen in export.overrides.items() if chosen}
    return tuple((p, c if isinstance(c, str) else c.quantization) for p, c in schemes.items())


def _override_groups(export: Export) -> dict[str, int]:
    parts = {p: c for p, c in export.overrides.items() if isinstance(c, PartQuantization)}
    return {pattern: part.group_size for pattern, part in parts.items() if part.group_size}


def _generation(export: Export) -> ExportGeneration:
    """With the text that the model is evaluated on; None for none."""
    asked = export.generation or ExportGeneration()
    quantized = export.quantization in (*LINEAR_SCHEMES, *STATIC_SCHEMES)
    quantized = quantized or asked.cache != "float32" or asked.window is not None
    bundled = EVALUATION_TEXT if quantized else NO_TEXT
    text = asked.evaluate or bundled
    evaluated = None if text == NO_TEXT else text
    return asked.model_copy(update={"evaluate": evaluated, "layout": layout_for(asked)})


def _named_function(export: Export) -> str | None:
    return export.calibration if isinstance(export.calibration, str) else None


def _reads_calibration(export: Export) -> bool:
    schemes = {export.quantization, *dict(_overrides(export)).values()}
    return bool(schemes & {*SEARCHED_SCHEMES, *STATIC_SCHEMES})


def _calibration_text(export: Export) -> str | None:
    if not _reads_calibration(export) or export.calibration == NO_TEXT:
        return None
    asked = export.calibration
    if not isinstance(asked, CalibrationText):
        return asked or CALIBRATION_TEXT
    if asked.text is None and isinstance(asked.prompts, tuple):
        return None
    return asked.text or CALIBRATION_TEXT


def _calibration_prompts(export: Export) -> int | tuple[str, ...] | None:
    asked = export.calibration
    if not isinstance(asked, CalibrationText) or not _reads_calibration(export):
        return None
    return asked.prompts


def _has_groups(recipe: Recipe) -> bool:
    schemes = {recipe.export.quantization, *dict(_overrides(recipe.export)).values()}
    return bool(schemes & set(GROUPED_SCHEMES)) or recipe.embeddings in GROUPED_EMBEDDINGS


def _hf_model(model: Model) -> HfModel | None:
    if model.gguf is not None:
        return _gguf_model(model.gguf, model.revision)
    if model.checkpoint is not None:
        params = model.params or str(Path(model.checkpoint).with_name(PARAMS))
        return HfModel(checkpoint=model.checkpoint, params=params)
    named = model.hf or model.timm
    if named is None:
        return None
    code = model.remote_code is not None  # which names the same model; see the recipe's rules
    kind = {"remote_code": code, "timm": model.timm is not None}
    if Path(named).is_absolute():
        return HfModel(folder=named, **kind)
    return HfModel(id=named, revision=model.revision or "main", **kind)


def _adapters_of(model: Model) -> dict[str, HfModel]:
    """The adapters that a recipe names; the only one may have no name."""
    named = {"": model.lora} if isinstance(model.lora, str) else model.lora or {}
    return {
        name: HfModel(folder=place) if Path(place).is_absolute() else HfModel(id=place)
        for name, place in named.items()
    }


def _gguf_model(named: str, revision: str | None) -> HfModel:
    """A file on this machine, or `ORG/NAME/FILE`."""
    path = Path(named)
    if path.is_absolute():
        return HfModel(folder=str(path.parent), gguf=path.name)
    owner, name, file = named.split("/", 2)
    return HfModel(id=f"{owner}/{name}", gguf=file, revision=revision or "main")


def _refuse_inputs(recipe: Recipe, places: Mapping[KeyPath, SourceLocation]) -> None:
    if recipe.benchmark.inputs:
        place = str(places.get(("benchmark", "inputs"), "benchmark.inputs"))
        message = "the inputs of a program of another exporter are random; no function makes them"
        raise RecipeError([Problem(place, message)])


def _reference(place: str, text: str | None) -> CodeReference | None:
    if text is None:
        return None
    origin, colon, name = text.rpartition(":")
    if not colon or not origin or not name.isidentifier():
        hint = "write file.py:function or package.module:function"
        raise RecipeError([Problem(place, f"{text!r} names no function", hint)])
    if origin.endswith(".py") or "/" in origin:
        return CodeReference(file=origin, name=name)
    return CodeReference(module=origin, name=name)
