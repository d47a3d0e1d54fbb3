"""YAML text as PyYAML's nodes; invalid YAML becomes a problem with its place."""

from __future__ import annotations

from typing import Any

import yaml

from etdeploy.core.errors import Problem, RecipeError
from etdeploy.recipe.place import Place

_MAX_DEPTH = 64
# libyaml's parser where PyYAML was built with it: ten times faster.
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def compose(text: str, shown: str, noun: str = "a recipe") -> yaml.Node | None:
    """The nodes of the only document; None for an empty text.

    Args:
        text: YAML.
        shown: The file, for messages.
        noun: What it is.

    Raises:
        RecipeError: The text is not YAML, or nested too deeply.
    """
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
                place = Place(shown, mark.line + 1, mark.column + 1)
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
        place = _after(file, text[: bad.start()]) if bad else Place(file)
        return Problem(str(place), f"this is not YAML: {what}")
    place = Place(file, mark.line + 1, mark.column + 1)
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


def _after(file: str, text: str) -> Place:
    """The place right after `text`."""
    return Place(file, text.count("\n") + 1, len(text) - text.rfind("\n"))
