"""Finds, merges, overrides and validates recipes; reports every problem at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

from pydantic import ValidationError

from etdeploy.backends.schemes import DEFAULT_RECIPE, LANGUAGE_RECIPE
from etdeploy.core.errors import Problem, RecipeError
from etdeploy.core.files.basic import resource_folder
from etdeploy.core.hashing import sha256_file
from etdeploy.recipe.document import Document, KeyPath, SourceLocation, parse_value, read_document
from etdeploy.recipe.find import bundled_recipes, find_recipe, resolved
from etdeploy.recipe.llm_config import embed_file
from etdeploy.recipe.model import Recipe
from etdeploy.recipe.paths import KEYS_BY_SUFFIX, absolute_paths, hub_model
from etdeploy.recipe.problems import translate
from etdeploy.recipe.rules.common import MODEL_SOURCES
from etdeploy.recipe.tasks import TEXT_GENERATION, complete_task, generates, names_timm

# An override that is the value of model.hf, or of another key by its suffix, and not read as YAML.
MODEL_OPTION = "--model="
_MODEL_SHOWN = "--model"
# Keys of `export` about a language model, which a finished program does not get by them.
_OF_EXPORTED_TEXT = ("generation", "calibration")
# Overrides whose values are not read as YAML either, with their keys.
LORA_OPTION, SPECULATE_OPTION = "--lora=", "--speculate="
TEXT_OPTION, IMAGE_OPTION, AUDIO_OPTION = "--text=", "--image=", "--audio="
_PLAIN_OPTIONS: Mapping[str, tuple[str, ...]] = {
    LORA_OPTION: ("benchmark", "generation", "lora"),
    SPECULATE_OPTION: ("benchmark", "generation", "speculation"),
    TEXT_OPTION: ("benchmark", "input", "text"),
    IMAGE_OPTION: ("benchmark", "input", "image"),
    AUDIO_OPTION: ("benchmark", "input", "audio"),
}
# An override of the length of a language model's texts, with what has to fit into it.
CONTEXT_OPTION = "--context="

__all__ = [
    "LoadedRecipe",
    "Override",
    "Overrides",
    "bundled_recipes",
    "load_each",
    "load_recipe",
    "load_recipes",
]


@dataclass(frozen=True)
class LoadedRecipe:
    """A recipe, and where it came from.

    Attributes:
        name: Its `name`, or that of the file.
        path: The file, absolute.
        recipe: The values, with absolute paths.
        files: Every file that was read for it with its SHA-256, the named one first.
        places: The place of each key.
    """

    name: str
    path: Path
    recipe: Recipe
    files: tuple[tuple[Path, str], ...]
    places: Mapping[KeyPath, SourceLocation] = field(default_factory=dict)

    def is_chosen(self, *keys: str) -> bool:
        """Whether the user gave the value of a key: no default, and none of a bundled recipe's."""
        if not self.places:
            return True
        place = self.places.get(keys)
        if place is None:
            return False
        bundled = resource_folder("recipes").resolve()
        return place.line is None or place.folder.resolve() != bundled

    @property
    def named_model(self) -> str:
        """The model that --model names; empty where it is the recipe's own."""
        model = self.recipe.model
        named = {key: getattr(model, key) for key in ("hf", "timm", *KEYS_BY_SUFFIX.values())}
        key = next((key for key, value in named.items() if value), "hf")
        place = self.places.get(("model", key))
        return named[key] or "" if place and place.file == _MODEL_SHOWN else ""


@dataclass(frozen=True)
class Override:
    """A value that the command line changes.

    Attributes:
        text: As `key.path=value`.
        option: Which option gave it, for messages.
        folder: What paths in it are relative to; None for the current one.
    """

    text: str
    option: str = "--set"
    folder: Path | None = None


# What is only text was given by --set.
Overrides = Sequence["str | Override"]


def load_recipe(name: str, overrides: Overrides = ()) -> LoadedRecipe:
    """Loads a bundled recipe by name or a file by path, with `key.path=value` overrides.

    An override `--model=ID_OR_PATH` names the model as it is.

    Raises:
        RecipeError: It cannot be found, read or used; reports every problem with its place.
    """
    path = find_recipe(name, Path.cwd())
    document, chain = _with_parents(path, ())
    if overrides:
        document = _merged(document, _overrides(overrides, document))
    document.data.pop("extends", None)
    recipe = _validate(document)
    files = tuple((file, sha256_file(file)) for file in chain)
    return LoadedRecipe(recipe.name or path.stem, path, recipe, files, document.places)


def default_recipe(model: str | None, otherwise: str = DEFAULT_RECIPE) -> str:
    """The bundled recipe for what --model names; `otherwise` without a model to export."""
    if model is None or _model_key(model) == "program":
        return otherwise
    key, in_hub = _model_key(model), hub_model(model)
    named = {key: in_hub[0], "revision": in_hub[1]} if in_hub else {key: _absolute(model)}
    complete_task(data := {"model": named})
    task = data["model"].get("task", TEXT_GENERATION)
    is_text = generates(task, data.get("export", {}).get("generation"))
    return LANGUAGE_RECIPE if is_text else DEFAULT_RECIPE


def _model_key(name: str) -> str:
    """The key of `model` for what --model names."""
    path = PurePath(name.partition("?")[0])
    if path.suffix in KEYS_BY_SUFFIX:
        return KEYS_BY_SUFFIX[path.suffix]
    return "timm" if names_timm(_absolute(name)) else "hf"


def _absolute(model: str) -> str:
    """The absolute path of a folder; another name as it is."""
    try:
        path = resolved(Path.cwd(), model)
        return str(path) if path.is_dir() else model
    except OSError:  # too long for a path
        return model


def load_recipes(names: Sequence[str], overrides: Overrides = ()) -> tuple[LoadedRecipe, ...]:
    """Loads several recipes, with the same overrides for each."""
    return load_each([(name, overrides) for name in names])


def load_each(named: Iterable[tuple[str, Overrides]]) -> tuple[LoadedRecipe, ...]:
    """The same for recipes that each have overrides of their own."""
    loaded, errors = [], []
    for name, overrides in named:
        try:
            loaded.append(load_recipe(name, overrides))
        except RecipeError as error:
            errors.append(error)
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise _joined(errors)
    return tuple(loaded)


def _joined(errors: Sequence[RecipeError]) -> RecipeError:
    """All problems; one that recipes share, such as that of an override, once."""
    problems = {str(p): p for error in errors for p in error.problems}
    remedies = dict.fromkeys(error.remedy for error in errors if error.remedy)
    return RecipeError(
        list(problems.values()), remedy="\n".join(remedies) or None, recipes=len(errors)
    )


def _with_parents(path: Path, seen: tuple[Path, ...]) -> tuple[Document, tuple[Path, ...]]:
    """The document merged over everything that it extends, and the files that were read."""
    try:
        document = read_document(path)
    except OSError as error:
        raise RecipeError([Problem(str(path), f"cannot be read: {error.strerror}")]) from None
    document.problems += embed_file(document)
    parent = document.data.get("extends")
    if parent is None:
        return document, (path,)
    place = document.places["extends",]
    if not isinstance(parent, str):
        raise RecipeError([Problem(str(place), "extends takes the name or path of one recipe")])
    parent_path = find_recipe(parent, path.parent, place)
    if parent_path in (*seen, path):
        circle = " -> ".join(p.name for p in (*seen, path, parent_path))
        raise RecipeError([Problem(str(place), f"recipes extend each other in a circle: {circle}")])
    below, chain = _with_parents(parent_path, (*seen, path))
    # Names and descriptions are not inherited.
    for key in ("name", "description"):
        below.data.pop(key, None)
    return _merged(below, document), (path, *chain)


def _merged(below: Document, above: Document) -> Document:
    _drop_other_sources(below.data, above.data)
    data = _merge(below.data, above.data)
    return Document(data, {**below.places, **above.places}, [*below.problems, *above.problems])


def _merge(below: Any, above: Any) -> Any:
    if isinstance(below, dict) and isinstance(above, dict):
        merged = {
            key: _merge(below[key], value) if key in below else value
            for key, value in above.items()
        }
        return {**below, **merged}
    return above


def _drop_other_sources(below: dict[str, Any], above: dict[str, Any]) -> None:
    """A recipe that names a model source replaces the whole model of what it extends.

    One that names a finished program also replaces how a language model was to be exported.
    """
    model = above.get("model")
    if isinstance(model, dict) and any(model.get(s) is not None for s in MODEL_SOURCES):
        below.pop("model", None)
        export = below.get("export")
        if model.get("program") is not None and isinstance(export, dict):
            for key in _OF_EXPORTED_TEXT:
                export.pop(key, None)


def _overrides(given: Overrides, below: Document) -> Document:
    """All overrides as one document, so that their order matters only for equal keys."""
    above = Document({}, {})
    for each in given:
        override = Override(each) if isinstance(each, str) else each
        text, option = override.text, override.option
        if text.startswith(MODEL_OPTION):
            model = text.removeprefix(MODEL_OPTION)
            _put(above, ("model", _model_key(model)), model, below, _MODEL_SHOWN)
            continue
        if plain := next((o for o in _PLAIN_OPTIONS if text.startswith(o)), None):
            value = text.removeprefix(plain)
            _put(above, _PLAIN_OPTIONS[plain], value, below, plain.removesuffix("="))
            continue
        if text.startswith(CONTEXT_OPTION):
            _put_context(above, int(text.removeprefix(CONTEXT_OPTION)), below)
            continue
        key, equals, value_text = text.partition("=")
        keys = tuple(key.split("."))
        try:
            if not equals or not all(keys):
                hint = f"e.g. {option} benchmark.iterations=100"
                raise RecipeError([Problem(f"{option} {text}", "write it as key.path=value", hint)])
            if keys[0] == "extends":
                raise RecipeError([Problem(f"{option} {key}", "only a file can extend a recipe")])
            value = parse_value(value_text, f"{option} {key}")
        except RecipeError as error:
            above.problems.extend(error.problems)
            continue
        _put(above, keys, value, below, f"{option} {key}", override.folder)
    return above


def _put_context(above: Document, context: int, below: Document) -> None:
    """Sets what --context names; `prefill_tokens` must not exceed it."""
    generation = ("export", "generation")
    _put(above, (*generation, "context"), context, below, "--context")
    section: Any = below.data
    for key in generation:
        section = section.get(key) if isinstance(section, dict) else None
    prefill = section.get("prefill_tokens") if isinstance(section, dict) else None
    if isinstance(prefill, int) and prefill > context:
        _put(above, (*generation, "prefill_tokens"), context, below, "--context")


def _put(
    document: Document,
    keys: tuple[str, ...],
    value: Any,
    below: Document,
    shown: str,
    folder: Path | None = None,
) -> None:
    place = SourceLocation(shown, folder=folder or Path.cwd())
    nested = value
    for part in reversed(keys):
        nested = {part: nested}
    document.data = _merge(document.data, nested)
    for length in range(1, len(keys)):
        # A section of the file keeps its place: only this key of it is overridden.
        if not _is_section(below.data, keys[:length]):
            document.places.setdefault(keys[:length], place)
    document.places[keys] = place
    document.places.update(_places_below(keys, value, place))


def _is_section(data: Any, keys: tuple[str, ...]) -> bool:
    for key in keys:
        data = data.get(key) if isinstance(data, dict) else None
    return isinstance(data, dict)


def _places_below(
    path: KeyPath, value: Any, place: SourceLocation
) -> dict[KeyPath, SourceLocation]:
    found: dict[KeyPath, SourceLocation] = {}
    for key, child in value.items() if isinstance(value, dict) else ():
        below = (*path, key)
        found[below] = place
        found.update(_places_below(below, child, place))
    return found


def _validate(document: Document) -> Recipe:
    paths = absolute_paths(document)
    found = list(document.problems)
    try:
        recipe = Recipe.model_validate(document.data)
    except ValidationError as error:
        found += translate(error, document)
    if found or paths:
        raise RecipeError([*found, *paths])
    return recipe
