"""`export.llm_config`: the LlmConfig of ExecuTorch's own exporter, as a part of a recipe.

Which keys it has is a matter of the installed release: `export/llm_config.py` reads them there.
Here is what etdeploy itself has to know of it: files, and what other keys of a recipe say too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from etdeploy.backends.registry import find_backend
from etdeploy.core.errors import Problem, RecipeError
from etdeploy.recipe.document import Document, FileKind, KeyPath, SourceLocation, read_document
from etdeploy.recipe.find import resolved

LLM_CONFIG = ("export", "llm_config")
_DOTTED = ".".join(LLM_CONFIG)
_KIND = FileKind("an LlmConfig", "base", "The smallest LlmConfig is:\nbase: {model_class: llama3}")
# Keys of an LlmConfig that name files to read; `*` stands for the items of a list.
_FILE_KEYS: tuple[KeyPath, ...] = tuple(
    tuple(key.split("."))
    for key in (
        "base.checkpoint",
        "base.params",
        "base.tokenizer_path",
        "base.lora_config.adapter_checkpoint",
        "base.lora_config.adapter_config",
        "model.output_prune_map",
        "model.input_prune_map",
        "export.so_library",
        "multimethod.methods.*.lora_config.adapter_checkpoint",
        "multimethod.methods.*.lora_config.adapter_config",
        "backend.qnn.optimized_rotation_path",
    )
)
# The first that is enabled is the one that ExecuTorch's exporter lowers to.
_BACKENDS = (
    "xnnpack", "openvino", "ethosu", "vgf", "tosa", "mlx", "coreml", "vulkan", "qnn",
)  # fmt: skip
# With none of them, operators run on CPU kernels.
_NO_BACKEND = "portable"
# What `quantization.qmode` and `quantization.pt2e_quantize` have the same scheme for.
_SCHEMES = {"8da4w": "8da4w", "xnnpack_dynamic": "int8_dynamic"}
# Keys of `export` that ExecuTorch's exporter does not take, each with the key of an LlmConfig for
# it; empty where there is none.
_FOR_ETDEPLOY = {
    "overrides": "",
    "embeddings": "quantization.embedding_quantize",
    "calibration": "quantization.calibration_data",
    "rounding": "",
    "scaling": "",
    "target_bits": "",
    "options": "backend",
    "rewrites": "",
    "custom_ops": "export.so_library",
    "strict": "",
}
# Keys of a recipe that an LlmConfig has, too; they may repeat it.
_SAME = {
    "group_size": "quantization.group_size",
    "soc": "backend.qnn.soc_model",
    "generation.context": "export.max_context_length",
    "generation.prefill_tokens": "export.max_seq_length",
}


def value_at(config: Any, key: str) -> Any:
    """The value of a dotted key; None where it is missing."""
    for part in key.split("."):
        config = config.get(part) if isinstance(config, Mapping) else None
    return config


def embed_file(document: Document) -> list[Problem]:
    """Replaces the name of a file by its content, whose keys keep their places in it."""
    section: Any = document.data.get("export")
    name = section.get("llm_config") if isinstance(section, dict) else None
    if not isinstance(name, str):
        return []
    place = document.places[LLM_CONFIG]
    path = resolved(place.folder, name)
    section["llm_config"] = {}
    try:
        read = read_document(path, _KIND)
    except OSError as error:
        problem = f"{_DOTTED}: {path} cannot be read: {error.strerror}"
        return [Problem(str(place), problem)]
    except RecipeError as error:
        return error.problems
    section["llm_config"] = read.data
    document.places.update({(*LLM_CONFIG, *keys): at for keys, at in read.places.items() if keys})
    return read.problems


def llm_files(config: Any) -> Iterator[tuple[KeyPath, str]]:
    """Each file that an LlmConfig names, by its key."""
    for keys in _FILE_KEYS:
        yield from _named(config, keys, ())


def _named(config: Any, keys: KeyPath, above: KeyPath) -> Iterator[tuple[KeyPath, str]]:
    if not keys:
        if isinstance(config, str) and config:
            yield above, config
    elif keys[0] == "*":
        for i, item in enumerate(config if isinstance(config, list) else ()):
            yield from _named(item, keys[1:], (*above, i))
    elif isinstance(config, dict) and keys[0] in config:
        yield from _named(config[keys[0]], keys[1:], (*above, keys[0]))


def with_files(config: dict[str, Any], files: Mapping[KeyPath, str]) -> dict[str, Any]:
    """The config with other names for its files; the values above them are copied."""

    def changed(value: Any, here: KeyPath) -> Any:
        if here in files:
            return files[here]
        if isinstance(value, dict):
            return {key: changed(item, (*here, key)) for key, item in value.items()}
        if isinstance(value, list):
            return [changed(item, (*here, i)) for i, item in enumerate(value)]
        return value

    return {key: changed(value, (key,)) for key, value in config.items()}


def absolute_files(document: Document) -> list[Problem]:
    """Makes the paths of an LlmConfig absolute, relative to the file that has them."""
    section: Any = document.data.get("export")
    config = section.get("llm_config") if isinstance(section, dict) else None
    if not isinstance(config, dict):
        return []
    files, problems = {}, []
    for keys, name in llm_files(config):
        place = _place(document, (*LLM_CONFIG, *keys))
        path = resolved(place.folder, name)
        files[keys] = str(path)
        if not path.is_file():
            what = "is a folder" if path.is_dir() else "does not exist"
            text = f"{_DOTTED}.{'.'.join(map(str, keys))}: the file {path} {what}"
            problems.append(Problem(str(place), text))
    section["llm_config"] = with_files(config, files)
    return problems


def _place(document: Document, keys: KeyPath) -> SourceLocation:
    """The place of a key, or of the nearest section: an override has none for items of lists."""
    above = (keys[:length] for length in range(len(keys), 0, -1))
    return next(document.places[each] for each in (*above, ()) if each in document.places)


def complete(data: dict[str, Any]) -> dict[str, Any]:
    """A recipe's data with what the LlmConfig says about its model, backend and quantization."""
    export = data.get("export")
    config = export.get("llm_config") if isinstance(export, dict) else None
    if not isinstance(export, dict) or not isinstance(config, dict):
        return data
    says = {"backend": backend_in(config), "quantization": scheme_in(config)}
    given = {key: value for key, value in export.items() if value is not None}
    return {**data, "model": data.get("model") or {}, "export": {**says, **given}}


def backend_in(config: Mapping[str, Any]) -> str:
    """The name of the backend that an LlmConfig enables, as far as etdeploy exports for it."""
    forced = str(value_at(config, "quantization.pt2e_quantize")).startswith("xnnpack")
    enabled = [name for name in _BACKENDS if value_at(config, f"backend.{name}.enabled") is True]
    name = "xnnpack" if forced else next(iter(enabled), _NO_BACKEND)
    found = find_backend(name)
    return name if found and found.lowering else _NO_BACKEND


def scheme_in(config: Mapping[str, Any]) -> str:
    """The scheme that an LlmConfig asks for; `none` also for one that etdeploy has no name for."""
    modes = (value_at(config, f"quantization.{key}") for key in ("qmode", "pt2e_quantize"))
    found = [_SCHEMES.get(str(mode), "none") for mode in modes if mode is not None]
    backend = find_backend(backend_in(config))
    has = bool(backend and found and found[0] in backend.quantizations)
    return found[0] if len(found) == 1 and has else "none"


def soc_in(config: Mapping[str, Any]) -> str | None:
    """The SoC that an LlmConfig names."""
    found = value_at(config, _SAME["soc"])
    return found if isinstance(found, str) else None


def contradictions(
    config: Mapping[str, Any], model: Mapping[str, Any], export: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    """Keys of the recipe that say something else than the LlmConfig, and what is wrong."""
    for name, value in model.items():
        if value is not None and value != {}:
            yield (
                f"model.{name}",
                f"{_DOTTED} names the model itself, by base.checkpoint and base.params; leave this "
                "key out",
            )
    for key, own in _FOR_ETDEPLOY.items():
        if export.get(key) not in (None, {}, False):
            instead = f"write {_DOTTED}.{own} instead" if own else "leave this key out"
            yield (
                f"export.{key}",
                f"it is for etdeploy's exporter, and {_DOTTED} for ExecuTorch's; {instead}",
            )
    backend, scheme = export.get("backend"), export.get("quantization")
    if backend is not None and backend != backend_in(config):
        enabled = backend_in(config)
        says = "no backend" if enabled == _NO_BACKEND else enabled
        yield (
            "export.backend",
            f"this recipe names {backend}, and {_DOTTED}.backend enables {says}; leave this key "
            "out",
        )
    if scheme is not None and scheme != scheme_in(config):
        yield (
            "export.quantization",
            f"this recipe names {scheme}, and {_DOTTED}.quantization {_modes(config)}; leave this "
            "key out",
        )
    for key, own in _SAME.items():
        given, theirs = value_at(export, key), value_at(config, own)
        if given not in (None, theirs, "auto"):
            says = "does not have it" if theirs is None else f"has {theirs}"
            yield (
                f"export.{key}",
                f"this recipe has {given}, and {_DOTTED}.{own} {says}; write it there alone",
            )


def _modes(config: Mapping[str, Any]) -> str:
    modes = {key: value_at(config, f"quantization.{key}") for key in ("qmode", "pt2e_quantize")}
    named = [f"{key} {mode}" for key, mode in modes.items() if mode is not None]
    return f"has {' and '.join(named)}" if named else "has neither qmode nor pt2e_quantize"


def relative(config: dict[str, Any], base: Path, make: Any) -> dict[str, Any]:
    """The config with paths relative to a folder; `make` makes one of them relative."""
    return with_files(config, {keys: make(Path(name), base) for keys, name in llm_files(config)})
