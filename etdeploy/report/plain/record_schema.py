"""The JSON Schema of run records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

from pydantic import BaseModel

from etdeploy.bench.records.record import RunRecord
from etdeploy.bench.records.stored import FOLDER_KEY
from etdeploy.bench.reference import descriptions


def record_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a record; descriptions are those of docs/records.md.

    Keys with a default are not required: a record may leave them out.
    """
    content = RunRecord.model_json_schema(mode="validation")
    for name, model in _models(RunRecord).items():
        described = content if model is RunRecord else content["$defs"].get(name, {})
        for key, text in descriptions(model).items():
            if key in described.get("properties", {}):
                described["properties"][key]["description"] = text
    content["properties"][FOLDER_KEY] = {
        "type": "string",
        "description": "The record's folder on one machine; only what `--json` prints has it.",
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **content,
        "title": "etdeploy run record",
    }


def _models(model: type[BaseModel]) -> dict[str, type[BaseModel]]:
    """A model and all that its fields lead to, by class name."""
    found: dict[str, type[BaseModel]] = {}
    waiting = [model]
    while waiting:
        each = waiting.pop()
        if each.__name__ not in found:
            found[each.__name__] = each
            waiting += [
                kind for field in each.model_fields.values() for kind in _classes(field.annotation)
            ]
    return found


def _classes(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _classes(part)
