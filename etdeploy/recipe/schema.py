"""The JSON Schema of recipes, for completion and checks in editors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from etdeploy.backends.registry import exporting_backends, plugged_backends
from etdeploy.recipe.model import Recipe
from etdeploy.recipe.reference import key_texts, sections
from etdeploy.recipe.rules import MODEL_SOURCES

_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string"}


def schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a recipe file; descriptions are the fields' docstrings."""
    content = described_schema(Recipe)
    # A file that extends another need not name a model.
    content["required"] = []
    content["anyOf"] = [{"required": ["model"]}, {"required": ["extends"]}]
    for name in MODEL_SOURCES:
        _drop_null(content["$defs"]["Model"]["properties"][name])
    content["$defs"]["Export"]["properties"]["options"] |= {
        "properties": dict(_options()),
        "additionalProperties": False,
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **content,
        "title": "etdeploy deployment recipe",
    }


def described_schema(model: type[BaseModel]) -> dict[str, Any]:
    """The JSON Schema of a file's model, with the docstrings of its keys."""
    content = model.model_json_schema(mode="validation")
    for name, section in sections(model).items():
        described = content if section is model else content["$defs"][name]
        for key, text in key_texts(section).items():
            shown = section.model_fields[key].alias or key
            described["properties"][shown]["description"] = text
    return content


def _options() -> Iterator[tuple[str, dict[str, Any]]]:
    """The options of all backends; one that several have takes what any of them does."""
    by_name: dict[str, list[dict[str, Any]]] = {}
    for backend in (exporting_backends() | plugged_backends()).values():
        for option in backend.options:
            takes = {"enum": list(option.choices)} if option.choices else {}
            told = f"{backend.name}: {option.text}"
            kind = {"type": _TYPES[type(option.default)], "description": told, **takes}
            by_name.setdefault(option.name, []).append(kind)
    for name, kinds in by_name.items():
        yield name, kinds[0] if len(kinds) == 1 else {"anyOf": kinds}


def _drop_null(field: dict[str, Any]) -> None:
    """Removes `null`: a model source that is set has a value."""
    options = [option for option in field.pop("anyOf", []) if option != {"type": "null"}]
    if len(options) == 1:
        field.update(options[0])
    field.pop("default", None)
