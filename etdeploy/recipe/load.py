"""Finds, merges, overrides and validates recipes; reports every problem at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from yaml import YAMLError

from etdeploy.core.errors import Problem, RecipeError
from etdeploy.core.hashing import sha256_file
from etdeploy.core.resources import resource_folder
from etdeploy.recipe.document import Document, KeyPath, Place, parse_value, read_document
from etdeploy.recipe.model import MODEL_SOURCES, Recipe
from etdeploy.recipe.problems import translate

# Values that name files; those of functions are `file.py:function` or `package.module:function`.
_FILE_KEYS: tuple[tuple[str, str], ...] = (
    ("model", "exported"),
    ("model", "program"),
    ("model", "weights"),
)
_FUNCTION_KEYS: tuple[tuple[str, str], ...] = (("model", "python"), ("export", "calibration"))
_SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True)
class LoadedRecipe:
    """A recipe, and where it came from.

    Attributes:
        name: Its own name, or that of the file.
        path: The file, absolute.
        recipe: The values, paths made absolute.
        files: Every file that it was read from with its SHA-256, the named one first.
    """

    name: str
    path: Path
    recipe: Recipe
    files: tuple[tuple[Path, str], ...]


def bundled_recipes() -> tuple[str, ...]:
    """The names of the recipes that come with etdeploy."""
    return tuple(sorted(path.stem for path in resource_folder("recipes").glob("*.yaml")))


def load_recipe(name: str, overrides: Sequence[str] = ()) -> LoadedRecipe:
    """Loads a bundled recipe by name or a file by path, with `key.path=value` overrides.

    Raises:
        RecipeError: It cannot be found, read or used; every problem is named with its place.
    """
    path = _find(name, Path.cwd(), None)
    document, chain = _with_parents(path, ())
    for override in overrides:
        document = _overridden(document, override)
    document.data.pop("extends", None)
    recipe = _validate(document)
    files = tuple((file, sha256_file(file)) for file in chain)
    return LoadedRecipe(recipe.name or path.stem, path, recipe, files)


def _find(name: str, folder: Path, place: Place | None) -> Path:
    """The file of a bundled name or a path relative to `folder`."""
    shown = str(place) if place else name
    if not name.endswith(_SUFFIXES) and "/" not in name and name in bundled_recipes():
        return (resource_folder("recipes") / f"{name}.yaml").resolve()
    path = folder / Path(name).expanduser()
    if path.is_dir():
        found = sorted(p.name for p in path.iterdir() if p.suffix in _SUFFIXES)
        raise RecipeError(
            [Problem(shown, "a recipe is a YAML file, and this is a folder" + _named(name, place))],
            remedy=f"Name a file in it: {', '.join(found[:5])}" if found else None,
        )
    if not path.is_file():
        known = [*bundled_recipes(), *(p.name for p in folder.glob("*.y*ml"))]
        near = get_close_matches(name, known, n=1)
        raise RecipeError(
            [Problem(shown, "there is no such recipe" + _named(name, place), _mean(near))],
            remedy=f"Bundled recipes: {', '.join(bundled_recipes())}. Or give the path of a YAML "
            "file.",
        )
    return path.resolve()


def _named(name: str, place: Place | None) -> str:
    return f": {name!r}" if place else ""


def _mean(near: list[str]) -> str | None:
    return f"did you mean {near[0]!r}?" if near else None


def _with_parents(path: Path, seen: tuple[Path, ...]) -> tuple[Document, tuple[Path, ...]]:
    """The document with all that it extends below it."""
    try:
        document = read_document(path)
    except OSError as error:
        raise RecipeError([Problem(str(path), f"cannot be read: {error.strerror}")]) from None
    parent = document.data.get("extends")
    if parent is None:
        return document, (path,)
    place = document.places["extends",]
    if not isinstance(parent, str):
        raise RecipeError([Problem(str(place), "extends takes the name or path of one recipe")])
    parent_path = _find(parent, path.parent, place)
    if parent_path in (*seen, path):
        circle = " -> ".join(p.name for p in (*seen, path, parent_path))
        raise RecipeError([Problem(str(place), f"recipes extend each other in a circle: {circle}")])
    below, chain = _with_parents(parent_path, (*seen, path))
    # A name or description is of one file; a child has its own or none.
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
    """A recipe that names a model source replaces the whole model of what it extends."""
    model = above.get("model")
    if isinstance(model, dict) and any(source in model for source in MODEL_SOURCES):
        below.pop("model", None)


def _overridden(document: Document, text: str) -> Document:
    key, equals, value_text = text.partition("=")
    place = Place(f"--set {key}", folder=Path.cwd())
    keys = tuple(key.split("."))
    if not equals or not all(keys):
        hint = "e.g. --set benchmark.iterations=100"
        problem = Problem(f"--set {text}", "write it as key.path=value", hint)
        return Document(document.data, document.places, [*document.problems, problem])
    try:
        value = parse_value(value_text)
    except YAMLError as error:
        what = getattr(error, "problem", None) or str(error)
        problem = Problem(str(place), f"the value is not YAML: {what}")
        return Document(document.data, document.places, [*document.problems, problem])
    nested: Any = value
    for part in reversed(keys):
        nested = {part: nested}
    sections = [keys[:n] for n in range(1, len(keys)) if keys[:n] not in document.places]
    places: dict[KeyPath, Place] = dict.fromkeys((*sections, keys), place)
    places.update(_places_below(keys, value, place))
    return _merged(document, Document(nested, places))


def _places_below(path: KeyPath, value: Any, place: Place) -> dict[KeyPath, Place]:
    found: dict[KeyPath, Place] = {}
    for key, child in value.items() if isinstance(value, dict) else ():
        below = (*path, key)
        found[below] = place
        found.update(_places_below(below, child, place))
    return found


def _validate(document: Document) -> Recipe:
    paths = _absolute_paths(document)
    try:
        recipe = Recipe.model_validate(document.data)
    except ValidationError as error:
        problems = [*document.problems, *translate(error, document), *paths]
        raise RecipeError(problems) from None
    if document.problems or paths:
        raise RecipeError([*document.problems, *paths])
    return recipe


def _absolute_paths(document: Document) -> list[Problem]:
    """Makes paths absolute against the file that names them; what is not there is a problem."""
    problems = []
    for keys in (*_FILE_KEYS, *_FUNCTION_KEYS):
        section = document.data.get(keys[0])
        value = section.get(keys[1]) if isinstance(section, dict) else None
        if not isinstance(section, dict) or not isinstance(value, str):
            continue
        place = document.places[keys]
        if keys in _FUNCTION_KEYS:
            file, colon, function = value.rpartition(":")
            if not colon or not file or not function.isidentifier():
                problems.append(
                    Problem(
                        str(place),
                        f"{'.'.join(keys)}: {value!r} names no function",
                        "write file.py:function or package.module:function",
                    )
                )
                continue
            if not file.endswith(".py"):
                continue
            suffix = f":{function}"
        else:
            file, suffix = value, ""
        path = (place.folder / Path(file).expanduser()).resolve()
        if not path.is_file():
            what = "is a folder" if path.is_dir() else "does not exist"
            problems.append(Problem(str(place), f"{'.'.join(keys)}: the file {path} {what}"))
        section[keys[1]] = f"{path}{suffix}"
    return problems
