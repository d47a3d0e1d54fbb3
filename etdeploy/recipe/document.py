"""YAML as plain data, with the place of every key and value.

The data is the same as from `yaml.safe_load`: no tags that create objects. Unlike there, a
duplicate key is a problem, and every node keeps its line and column.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from etdeploy.backends.schemes import DEFAULT
from etdeploy.core.errors import Problem, RecipeError
from etdeploy.core.files.basic import open_regular

KeyPath = tuple["str | int", ...]


@dataclass(frozen=True)
class SourceLocation:
    """Where something is; line and column count from 1, `line` is None for an override.

    Paths here are relative to `folder`.
    """

    file: str
    line: int | None = None
    column: int | None = None
    folder: Path = Path()

    def __str__(self) -> str:
        return self.file if self.line is None else f"{self.file}:{self.line}:{self.column}"


# Aliases are expanded; a document that grows beyond this is an attack or a mistake.
_MAX_NODES = 20_000
_TAG = "tag:yaml.org,2002:"
# Dates stay text: JSON has none, and recipes need none.
_TEXT_TAGS = frozenset(_TAG + name for name in ("str", "timestamp", "value"))
_VALUE_TAGS = frozenset(_TAG + name for name in ("int", "float", "bool", "null"))


@dataclass(frozen=True)
class FileKind:
    """What a YAML file is, for messages.

    Attributes:
        noun: "a recipe".
        needs: A key that each has.
        smallest: A remedy for an empty one.
    """

    noun: str
    needs: str
    smallest: str


RECIPE = FileKind(
    "a recipe",
    "model",
    f"The smallest recipe is:\nmodel: {{example: mlp}}\nexport: {{backend: {DEFAULT}}}",
)


@dataclass
class Document:
    """Plain data, and the place of each key (or item) by its path in the data."""

    data: dict[str, Any]
    places: dict[KeyPath, SourceLocation]
    problems: list[Problem] = field(default_factory=list)


def read_document(path: Path, kind: FileKind = RECIPE) -> Document:
    """Reads a YAML file whose top level is a mapping."""
    shown = _shown(path)
    try:
        with open_regular(path) as stream:
            text = stream.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RecipeError(
            [Problem(shown, f"the file is not UTF-8 text (byte {error.start})")],
            remedy="Save it as UTF-8.",
        ) from None
    node = compose(text, shown, kind.noun)
    top = SourceLocation(shown, 1, 1, path.resolve().parent)
    if node is None:
        raise RecipeError([Problem(str(top), "the file is empty")], remedy=kind.smallest)
    if not isinstance(node, yaml.MappingNode):
        raise RecipeError(
            [Problem(str(top), f"{kind.noun} is a mapping with the key `{kind.needs}`")]
        )
    walk = _Walk(shown, path.resolve().parent)
    walk.places[()] = top
    data = walk.value(node, ())
    return Document(data, walk.places, walk.problems)


def parse_value(text: str, shown: str) -> Any:
    """The value of an override, as YAML reads it; `shown` names it in problems."""
    try:
        node = compose(text, shown)
        walk = _Walk(shown, Path())
        value = None if node is None else walk.value(node, ())
        problems = walk.problems
    except RecipeError as error:
        problems = error.problems
    if problems:
        # Lines and columns inside a command-line value are of no use.
        raise RecipeError([Problem(shown, p.message, p.hint) for p in problems])
    return value


class _Walk:
    """Turns nodes into data; keeps places and problems."""

    def __init__(self, file: str, folder: Path) -> None:
        self.file = file
        self.folder = folder
        self.places: dict[KeyPath, SourceLocation] = {}
        self.problems: list[Problem] = []
        self._scalars = LOADER("")
        self._count = 0
        self._around: list[yaml.Node] = []

    def value(self, node: yaml.Node, path: KeyPath) -> Any:
        self._count += 1
        if self._count > _MAX_NODES:
            raise RecipeError([Problem(self.file, "the file contains too many values")])
        if any(node is outer for outer in self._around):
            raise RecipeError([Problem(str(self._place(node)), "this value contains itself")])
        self._around.append(node)
        try:
            return self._value(node, path)
        finally:
            self._around.pop()

    def _value(self, node: yaml.Node, path: KeyPath) -> Any:
        if isinstance(node, yaml.MappingNode) and node.tag == _TAG + "map":
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode) and node.tag == _TAG + "seq":
            return [self._item(child, (*path, i)) for i, child in enumerate(node.value)]
        if node.tag in _TEXT_TAGS:
            return str(node.value)
        if node.tag in _VALUE_TAGS:
            return self._scalar(node)
        self._problem(node, f"{node.tag.removeprefix(_TAG)} values are not supported")
        return None

    def _scalar(self, node: yaml.Node) -> Any:
        try:
            value = self._scalars.construct_object(node)
        except (yaml.YAMLError, ValueError, LookupError):
            self._problem(node, f"this cannot be read as {node.tag.removeprefix(_TAG)}")
            return None
        if isinstance(value, float) and not math.isfinite(value):
            self._problem(node, "a number must be finite")
            return None
        return value

    def _item(self, node: yaml.Node, path: KeyPath) -> Any:
        self.places[path] = self._place(node)
        return self.value(node, path)

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        result: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        for key_node, value_node in node.value:
            place = self._place(key_node)
            if not isinstance(key_node, yaml.ScalarNode):
                self._problem(key_node, "a key must be a plain word")
                continue
            if key_node.tag == _TAG + "merge":
                for other in self._merged(value_node, path):
                    merged = {**other, **merged}
                continue
            key = str(key_node.value)
            here = (*path, key)
            if key in result:
                first = self.places[here]
                hint = f"first defined at {first}"
                self.problems.append(Problem(str(place), f"duplicate key {key!r}", hint))
                continue
            self.places[here] = place
            result[key] = self.value(value_node, here)
        # As safe_load does it: the mapping's own keys win over those of `<<`.
        return {**merged, **result}

    def _merged(self, node: yaml.Node, path: KeyPath) -> Iterator[dict[str, Any]]:
        """The mappings that `<<` names; their keys have the place of their definition."""
        for part in node.value if isinstance(node, yaml.SequenceNode) else [node]:
            known = dict(self.places)
            value = self.value(part, path)
            self.places.update(known)
            if isinstance(value, dict):
                yield value
            else:
                self._problem(part, "`<<` takes a mapping or a list of mappings")

    def _problem(self, node: yaml.Node, message: str) -> None:
        self.problems.append(Problem(str(self._place(node)), message))

    def _place(self, node: yaml.Node) -> SourceLocation:
        mark = node.start_mark
        return SourceLocation(self.file, mark.line + 1, mark.column + 1, self.folder)


def _shown(path: Path) -> str:
    """Relative to the current folder where it lies below it, as the user would write it."""
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(path)


_MAX_DEPTH = 64
# libyaml's parser where PyYAML was built with it: ten times faster.
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def compose(text: str, shown: str, noun: str = "a recipe") -> yaml.Node | None:
    """The nodes of the only document; None for an empty text."""
    depth = 0
    try:
        # Composing deep nesting recurses until the C stack overflows; the events do not.
        for event in yaml.parse(text, Loader=LOADER):
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
            if depth > _MAX_DEPTH:
                mark: Any = event.start_mark
                place = SourceLocation(shown, mark.line + 1, mark.column + 1)
                raise RecipeError([Problem(str(place), f"more than {_MAX_DEPTH} levels deep")])
        node: yaml.Node | None = yaml.compose(text, Loader=LOADER)
    except yaml.YAMLError as error:
        raise RecipeError([_syntax_problem(shown, text, error, noun)]) from None
    return node


def _syntax_problem(file: str, text: str, error: yaml.YAMLError, noun: str) -> Problem:
    mark = getattr(error, "problem_mark", None)
    what = getattr(error, "problem", None) or str(error).splitlines()[0]
    if mark is None:
        bad = yaml.reader.Reader.NON_PRINTABLE.search(text)
        place = _after(file, text[: bad.start()]) if bad else SourceLocation(file)
        return Problem(str(place), f"this is not YAML: {what}")
    place = SourceLocation(file, mark.line + 1, mark.column + 1)
    if text[_offset(text, mark) :].startswith("\t"):
        return Problem(str(place), "this is not YAML: a tab indents here", "use spaces")
    if "another document" in what:
        return Problem(str(place), "a second document starts here", f"{noun} is one document")
    if "mapping values are not allowed" in what:
        hint = "text that contains ': ' needs quotes"
        return Problem(str(place), f"this is not YAML: {what}", hint)
    return Problem(str(place), f"this is not YAML: {what}", getattr(error, "context", None))


def _offset(text: str, mark: Any) -> int:
    lines = text.splitlines(keepends=True)[: mark.line]
    return sum(map(len, lines)) + int(mark.column)


def _after(file: str, text: str) -> SourceLocation:
    """The place right after `text`."""
    return SourceLocation(file, text.count("\n") + 1, len(text) - text.rfind("\n"))
