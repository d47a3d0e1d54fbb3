"""The JSON Schema of recipes, for completion and checks in editors."""

from __future__ import annotations

from typing import Any

from etdeploy.recipe.documented import key_texts, sections
from etdeploy.recipe.model import Recipe
from etdeploy.recipe.rules import MODEL_SOURCES


def schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a recipe file; descriptions are the fields' docstrings."""
    content = Recipe.model_json_schema(mode="validation")
    for name, section in sections(Recipe).items():
        described = content if section is Recipe else content["$defs"][name]
        for key, text in key_texts(section).items():
            described["properties"][key]["description"] = text
    # A file that extends another need not name a model.
    content["required"] = []
    content["anyOf"] = [{"required": ["model"]}, {"required": ["extends"]}]
    for name in MODEL_SOURCES:
        _drop_null(content["$defs"]["Model"]["properties"][name])
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **content,
        "title": "etdeploy deployment recipe",
    }


def _drop_null(field: dict[str, Any]) -> None:
    """Removes `null`: a model source that is set has a value."""
    options = [option for option in field.pop("anyOf", []) if option != {"type": "null"}]
    if len(options) == 1:
        field.update(options[0])
    field.pop("default", None)
