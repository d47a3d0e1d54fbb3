"""Checks an LlmConfig by the classes of the ExecuTorch release that is installed.

They are in a module that imports nothing but Python's own library, so it is loaded by its path:
importing it by its name would import ExecuTorch, which takes seconds.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import re
import sys
import typing
from collections.abc import Iterator
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from etdeploy.core.commands import pip_command
from etdeploy.core.errors import ExportError, Problem, RecipeError
from etdeploy.export.cache import installed_version
from etdeploy.export.spec import ExportSpec
from etdeploy.recipe.document import KeyPath
from etdeploy.recipe.llm_config import value_at, with_files

_MODULE = "executorch.extension.llm.export.config.llm_config"
EXPORTER = "executorch.examples.models.llama.export_llama_lib"
_KEY = ("export", "llm_config")
# Keys of Hydra, which reads the file for `export_llm`.
_OF_HYDRA = frozenset({"defaults", "hydra"})
# Keys that say where the exporter writes what etdeploy keeps in its cache.
_OUTPUTS = ("export.output_dir", "export.output_name")


def check_llm_config(spec: ExportSpec) -> None:
    """Refuses an LlmConfig that the installed release does not take.

    Raises:
        RecipeError: Keys that it does not have, or values that they do not take, each with its
            place.
        ExportError: The release has no such exporter.
    """
    if problems := [*unknown_keys(spec), *_refused(spec)]:
        raise RecipeError(problems)
    if problem := _wrong_value(spec):
        raise RecipeError([problem])


def output_notes(spec: ExportSpec) -> Iterator[str]:
    """What to know about keys that ExecuTorch's exporter does not get."""
    named = [key for key in _OUTPUTS if value_at(spec.llm_config, key) is not None]
    if named:
        yield (
            f"The program is in etdeploy's cache, where `etdeploy export` shows it, whatever "
            f"{' and '.join(named)} of the LlmConfig say."
        )


def release_config() -> Any:
    """The class LlmConfig of the installed release."""
    version = installed_version("executorch")
    path = _module_path(_MODULE)
    if path is None or _module_path(EXPORTER) is None:
        raise ExportError(
            f"ExecuTorch {version} was installed without its exporter of language models "
            f"({EXPORTER})",
            remedy=pip_command("etdeploy[export]"),
        )
    return _load(path)


def _module_path(name: str) -> Path | None:
    """The file of a module of ExecuTorch, which has no code to import for its own package."""
    package, *parts = name.split(".")
    spec = importlib.util.find_spec(package)
    folders = (spec.submodule_search_locations or ()) if spec else ()
    paths = (Path(folder, *parts).with_suffix(".py") for folder in folders)
    return next((path for path in paths if path.is_file()), None)


@cache
def _load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("etdeploy_llm_config", path)
    if spec is None or spec.loader is None:
        raise ImportError(path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where `dataclasses` and `typing` look for names
    spec.loader.exec_module(module)
    return module.LlmConfig


def content_of(spec: ExportSpec) -> dict[str, Any]:
    """The LlmConfig with the paths of its files."""
    files: dict[KeyPath, str] = {
        tuple(int(part) if part.isdigit() else part for part in key.split(".")): path
        for key, path in spec.llm_files.items()
    }
    return with_files(spec.llm_config or {}, files)


def unknown_keys(spec: ExportSpec) -> Iterator[Problem]:
    """Keys that the installed release does not have."""
    for keys, known in _unknown(spec.llm_config or {}, release_config(), ()):
        if keys[0] in _OF_HYDRA:
            hint: str | None = "it is for Hydra, which etdeploy does without: write all keys here"
        else:
            near = get_close_matches(str(keys[-1]), known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(known)}"
        version = installed_version("executorch")
        text = f"unknown key {_dotted(keys)!r} in the LlmConfig of ExecuTorch {version}"
        yield Problem(_place(spec, keys), text, hint)


def _unknown(value: Any, kind: Any, above: KeyPath) -> Iterator[tuple[KeyPath, tuple[str, ...]]]:
    """Keys of a value that its class does not have, with those that it has."""
    if isinstance(value, list):
        for i, item in enumerate(value):
            yield from _unknown(item, kind, (*above, i))
    if not isinstance(value, dict) or not dataclasses.is_dataclass(kind):
        return
    kinds = typing.get_type_hints(kind)
    known = tuple(field.name for field in dataclasses.fields(kind))
    for key, item in value.items():
        if key in known:
            yield from _unknown(item, _class_in(kinds[key]), (*above, key))
        else:
            yield (*above, key), known


def _class_in(kind: Any) -> Any:
    """The class of a value that may be missing, or in a list."""
    inner = [each for each in typing.get_args(kind) if each is not type(None)]
    return _class_in(inner[0]) if inner else kind


def _refused(spec: ExportSpec) -> Iterator[Problem]:
    if value_at(spec.llm_config, "export.export_only") is True:
        keys = ("export", "export_only")
        text = f"{_dotted(keys)}: with it, the exporter stops before there is a program"
        yield Problem(_place(spec, keys), text, "leave it out")


def _wrong_value(spec: ExportSpec) -> Problem | None:
    """What ExecuTorch's own classes say about the values; None for nothing."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        merged = OmegaConf.merge(OmegaConf.structured(release_config()), content_of(spec))
        OmegaConf.to_object(merged)
    except OmegaConfBaseException as error:
        keys = _parts(str(error.full_key or ""))
        text = (str(error.msg or error)).splitlines()[0]
        return Problem(_place(spec, keys), f"{_dotted(keys)}: {text}")
    except (ValueError, TypeError) as error:  # of the classes' own checks, which name the key
        named = (
            key for key in spec.places if key.rpartition(".")[2] in re.findall(r"\w+", str(error))
        )
        key = next((key for key in named if key.startswith(f"{_dotted(())}.")), _dotted(()))
        return Problem(spec.place(key), f"{key}: {error}")
    return None


def _parts(dotted: str) -> KeyPath:
    parts = dotted.replace("[", ".").replace("]", "").split(".")
    return tuple(int(part) if part.isdigit() else part for part in parts if part)


def _dotted(keys: KeyPath) -> str:
    return ".".join(map(str, (*_KEY, *keys)))


def _place(spec: ExportSpec, keys: KeyPath) -> str:
    """The place of a key, or of the nearest section that has one."""
    above = (_dotted(keys[:length]) for length in range(len(keys), -1, -1))
    return next((spec.places[each] for each in above if each in spec.places), _dotted(keys))
