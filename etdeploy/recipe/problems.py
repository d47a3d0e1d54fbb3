"""Pydantic's errors as sentences with a place and a suggestion."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import SequenceMatcher, get_close_matches
from functools import cache
from typing import Any, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from etdeploy.core.errors import Problem
from etdeploy.recipe.document import Document, KeyPath, SourceLocation
from etdeploy.recipe.model import Recipe
from etdeploy.recipe.rules.recipe import recipe_rules
from etdeploy.recipe.rules.sections import RULES
from etdeploy.recipe.sections.base import section_of

_KINDS: Mapping[str, str] = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "string_type": "text",
    "bool_type": "true or false",
    "dict_type": "a mapping",
    "model_type": "a mapping of keys",
    "model_attributes_type": "a mapping of keys",
}


# What an unknown key is explained by: the model of the file, and what the file is.
_Top = tuple[type[BaseModel], str]
_RECIPE: _Top = (Recipe, "a recipe")
# A place, what is wrong there, and what may be meant.
Found = tuple[SourceLocation, str, str | None]


def translate(error: ValidationError, document: Document) -> list[Problem]:
    """Every error and every broken rule in the order of the file, each mistake once."""
    details = [d for d in error.errors() if not _is_rule(d)]
    reported = {d["loc"] for d in details}
    found = _found(details, document, _RECIPE)
    for location, text in _broken_rules(document.data):
        if location not in reported:
            found.append((place_of(document, location), f"{'.'.join(location)}: {text}", None))
    return in_order(found)


def found_in(
    error: ValidationError, document: Document, model: type[BaseModel], noun: str
) -> list[Found]:
    """Every error in a file of another kind.

    Args:
        error: Of validating it.
        document: The file.
        model: That it was validated by.
        noun: What the file is, for messages.
    """
    return _found(error.errors(), document, (model, noun))


def in_order(found: Iterable[Found]) -> list[Problem]:
    """Problems in the order of their files."""
    by_place = sorted(
        found, key=lambda item: (item[0].file, item[0].line or 0, item[0].column or 0)
    )
    return [Problem(str(place), message, hint) for place, message, hint in by_place]


def _found(details: list[ErrorDetails], document: Document, top: _Top) -> list[Found]:
    meant = {_meant(d, top) for d in details}
    shown = [d for d in details if d["type"] != "missing" or d["loc"] not in meant]
    return [(place_of(document, _location(d)), *_problem(d, top)) for d in shown]


def _location(details: ErrorDetails) -> KeyPath:
    """The path of the key, or of the item in its list that is wrong."""
    item = details.get("ctx", {}).get("item")
    return details["loc"] if item is None else (*details["loc"], item)


def _broken_rules(data: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], str]]:
    """What is wrong between keys, with the path of the key that it is about."""
    for name, rules in RULES.items():
        section = data.get(name, {})
        for key, text in rules(section) if isinstance(section, dict) else ():
            yield ((name, *key.split(".", 1)) if key else (name,)), text
    for key, text in recipe_rules(data):
        yield tuple(key.split(".")), text


def _is_rule(details: ErrorDetails) -> bool:
    """Whether a model found a broken rule; all sections are checked for those anyway."""
    places = {(), *((name,) for name in RULES)}
    return details["type"] == "value_error" and details["loc"][:1] in places


def place_of(document: Document, location: KeyPath) -> SourceLocation:
    """The place of the key, or of the nearest section that contains it."""
    for length in range(len(location), 0, -1):
        if location[:length] in document.places:
            return document.places[location[:length]]
    return document.places[()]


def _problem(details: ErrorDetails, top: _Top) -> tuple[str, str | None]:
    key = ".".join(map(str, details["loc"]))
    if details["type"] == "extra_forbidden":
        return _unknown_key(key, details, top)
    describe = _DESCRIBED.get(details["type"])
    if describe:
        return describe(key, details)
    found = details["input"]
    if details["type"] in _KINDS:
        hint = _spelling(details["type"], found)
        return f"{key} takes {_KINDS[details['type']]}, not {_shown(found)}", hint
    message = re.sub(r"^(Input|String) should", f"{key} should", details["msg"])
    return f"{message}, not {_shown(found)}", None


def _spelling(kind: str, found: object) -> str | None:
    """YAML's own rules, where they surprise: `1e-3` is text, and so is a quoted number."""
    if kind == "float_type" and isinstance(found, str) and re.fullmatch(r"[0-9.]+[eE]-?\d+", found):
        return "YAML needs a decimal point and a sign: 1.0e-3"
    if kind == "string_type" and isinstance(found, int | float):
        return "put it in quotes"
    return None


def _unknown_key(key: str, details: ErrorDetails, top: _Top) -> tuple[str, str | None]:
    *section, _ = details["loc"]
    meant = _meant(details, top)
    where = f"the section {'.'.join(map(str, section))}" if section else top[1]
    known = ", ".join(_fields(tuple(section), top))
    elsewhere = meant is not None and list(meant[:-1]) != section
    shown = ".".join(map(str, meant if elsewhere else meant[-1:])) if meant else ""
    hint = _NOT_THERE.get(key) or (f"did you mean {shown!r}?" if shown else None)
    return f"unknown key {key!r}", hint or f"{where} has {known}"


_NOT_THERE = {
    f"{section}.generation.{key}": "text is generated for one sequence at a time"
    for section in ("export", "benchmark")
    for key in ("batch", "batch_size")
}


def _meant(details: ErrorDetails, top: _Top) -> KeyPath | None:
    """The key that a misspelt one probably means."""
    if details["type"] != "extra_forbidden":
        return None
    *section, name = details["loc"]
    own = [(*section, key) for key in _fields(tuple(section), top)]
    # A key of the same section is meant rather than one with a name as close elsewhere.
    scored = [
        (SequenceMatcher(None, str(name), str(path[-1])).ratio(), path in own, path)
        for path in {*own, *_all_keys(top[0])}
    ]
    likely = [s for s in scored if s[0] >= (_ALIKE if s[1] else _ALIKE_ELSEWHERE)]
    return max(likely, key=lambda s: (s[0], s[1], -len(s[2])))[2] if likely else None


# How close the names of keys have to be, as difflib counts.
_ALIKE, _ALIKE_ELSEWHERE = 0.6, 0.85


@cache
def _all_keys(model: type[BaseModel], above: KeyPath = ()) -> frozenset[KeyPath]:
    """Every key of a file, with those of its sections; not of those in lists and mappings."""
    paths: set[KeyPath] = set()
    for name, field in model.model_fields.items():
        path = (*above, field.alias or name)
        paths.add(path)
        section = section_of(field.annotation)
        if section and get_origin(field.annotation) not in (tuple, list, dict):
            paths |= _all_keys(section, path)
    return frozenset(paths)


def _missing(key: str, _details: ErrorDetails) -> tuple[str, str | None]:
    hint = "e.g. model: {example: mlp}" if key == "model" else None
    return f"the key {key!r} is missing", hint


def _not_allowed(key: str, details: ErrorDetails) -> tuple[str, str | None]:
    expected = str(details["ctx"]["expected"])
    allowed = [word.strip().strip("'") for word in expected.replace(" or ", ", ").split(",")]
    near = get_close_matches(str(details["input"]), allowed, n=1)
    hint = f"did you mean {near[0]!r}?" if near else None
    return f"{key} takes {expected.replace(chr(39), '')}, not {_shown(details['input'])}", hint


def _takes(key: str, details: ErrorDetails) -> tuple[str, str | None]:
    near = get_close_matches(str(details["input"]), details["ctx"]["words"], n=1)
    hint = f"did you mean {near[0]!r}?" if near else None
    item, found = details["ctx"]["item"], details["input"]
    shown = repr(found)[:60] if isinstance(found, list) else _shown(found)
    if item is not None:
        shown = f"{_shown(found[item])} in {shown}"
    return f"{key} takes {details['ctx']['takes']}, not {shown}", hint


def _bad_name(key: str, details: ErrorDetails) -> tuple[str, str | None]:
    return (
        f"{key} {_shown(details['input'])} cannot name a folder",
        "use letters, digits, dot, dash and underscore",
    )


_DESCRIBED: Mapping[str, Callable[[str, ErrorDetails], tuple[str, str | None]]] = {
    "missing": _missing,
    "literal_error": _not_allowed,
    "takes": _takes,
    "string_pattern_mismatch": _bad_name,
}


def _fields(section: KeyPath, top: _Top) -> list[str]:
    model: type[BaseModel] | None = top[0]
    for name in section:
        field = model.model_fields.get(str(name)) if model else None
        # Anything but a key is a position in a list or a name in a mapping, each of a section.
        if field is not None:
            model = section_of(field.annotation)
    return [f.alias or name for name, f in model.model_fields.items()] if model else []


def _shown(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
