"""YAML as plain data, with the place of every key and value.

The same data as `yaml.safe_load` gives: no tags that make objects. Unlike it, a key that stands
twice is a problem, and every node remembers its line and column.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from etdeploy.core.errors import Problem, RecipeError

KeyPath = tuple["str | int", ...]

# Aliases are expanded; a document that grows beyond this is an attack or a mistake.
_MAX_NODES = 20_000
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class Place:
    """Where something stands; line and column count from 1, `line` is None for an override.

    Paths that stand here are relative to `folder`.
    """

    file: str
    line: int | None = None
    column: int | None = None
    folder: Path = Path()

    def __str__(self) -> str:
        return self.file if self.line is None else f"{self.file}:{self.line}:{self.column}"


@dataclass
class Document:
    """Plain data, and the place of each key (or item) by its path in the data."""

    data: dict[str, Any]
    places: dict[KeyPath, Place]
    problems: list[Problem] = field(default_factory=list)


def read_document(path: Path) -> Document:
    """Reads a YAML file whose top is a mapping.

    Raises:
        RecipeError: It is not UTF-8, not YAML, empty, or its top is no mapping.
    """
    shown = _shown(path)
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RecipeError(
            [Problem(shown, f"the file is not UTF-8 text (byte {error.start})")],
            remedy="Save it as UTF-8.",
        ) from None
    try:
        node = yaml.compose(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise RecipeError([_syntax_problem(shown, error)]) from None
    top = Place(shown, 1, 1, path.resolve().parent)
    if node is None:
        raise RecipeError(
            [Problem(str(top), "the file is empty")],
            remedy="The smallest recipe is:\nmodel: {example: mlp}\nexport: {backend: xnnpack}",
        )
    if not isinstance(node, yaml.MappingNode):
        raise RecipeError([Problem(str(top), "a recipe is a mapping with the key `model`")])
    walk = _Walk(shown, path.resolve().parent)
    walk.places[()] = top
    data = walk.value(node, ())
    return Document(data, walk.places, walk.problems)


def parse_value(text: str) -> Any:
    """The value of an override, as YAML reads it.

    Raises:
        yaml.YAMLError: It is not YAML.
    """
    return yaml.load(text, Loader=_Loader)  # noqa: S506 - a safe loader


class _Walk:
    """Turns nodes into data; keeps places and problems."""

    def __init__(self, file: str, folder: Path) -> None:
        self.file = file
        self.folder = folder
        self.places: dict[KeyPath, Place] = {}
        self.problems: list[Problem] = []
        self._scalars = _Loader("")
        self._count = 0

    def value(self, node: yaml.Node, path: KeyPath) -> Any:
        self._count += 1
        if self._count > _MAX_NODES:
            raise RecipeError([Problem(self.file, "the file holds too many values")])
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self._item(child, (*path, i)) for i, child in enumerate(node.value)]
        try:
            return self._scalars.construct_object(node)
        except (yaml.YAMLError, ValueError):
            message = f"{node.tag.removeprefix('tag:yaml.org,2002:')} values are not read"
            self.problems.append(Problem(str(self._place(node)), message))
            return None

    def _item(self, node: yaml.Node, path: KeyPath) -> Any:
        self.places[path] = self._place(node)
        return self.value(node, path)

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            place = self._place(key_node)
            if not isinstance(key_node, yaml.ScalarNode):
                self.problems.append(Problem(str(place), "a key has to be a plain word"))
                continue
            key = str(key_node.value)
            here = (*path, key)
            if key in result:
                first = self.places[here]
                hint = f"first at {first}"
                self.problems.append(Problem(str(place), f"{key!r} stands here again", hint))
                continue
            self.places[here] = place
            result[key] = self.value(value_node, here)
        return result

    def _place(self, node: yaml.Node) -> Place:
        mark = node.start_mark
        return Place(self.file, mark.line + 1, mark.column + 1, self.folder)


def _syntax_problem(file: str, error: yaml.YAMLError) -> Problem:
    mark = getattr(error, "problem_mark", None)
    place = Place(file, mark.line + 1, mark.column + 1) if mark else Place(file)
    what = getattr(error, "problem", None) or str(error).splitlines()[0]
    context = getattr(error, "context", None)
    return Problem(str(place), f"this is not YAML: {what}", context)


def _shown(path: Path) -> str:
    """Relative to the current folder where it lies below it, as the user would write it."""
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(path)
