"""docs/recipes.md, generated from the recipe's models."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
import types
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from etdeploy.backends.registry import exporting_backends, plugged_backends
from etdeploy.backends.schemes import DEFAULT, QUANTIZATIONS
from etdeploy.recipe.choice import Choice, Takes
from etdeploy.recipe.model import Recipe
from etdeploy.recipe.rules.common import MODEL_SOURCES
from etdeploy.recipe.sections.base import section_of

_INTRODUCTION = f"""# Recipes

<!-- Generated from etdeploy/recipe/model.py by `doit run reference`; edit there. -->

A recipe is one YAML file. The smallest one:

```yaml
model: {{example: mlp}}
export: {{backend: {DEFAULT}}}
```

Everything else has a default. `etdeploy recipes` lists the bundled recipes,
`etdeploy recipes show --recipe {DEFAULT} > my.yaml` starts your own from one of them, and
`etdeploy recipes show --recipe my.yaml --resolved` prints every value as etdeploy understands it.

* `extends: NAME` takes another recipe and changes the keys that are set here. A model source that
  is set here replaces the whole `model` section of the other, including weights and arguments.
* An empty value (`null`) means the default.
* `--set key.path=value` changes one value for one command; the value is read as YAML.
* Paths are relative to the file that names them, those in `--set` to the current folder.
* [inputs.md](inputs.md) describes the inputs that a factory can return, and how a dynamic model is
  measured at several sizes.
* `etdeploy recipes schema > recipe.schema.json` gives editors completion: for the YAML language
  server, put `# yaml-language-server: $schema=recipe.schema.json` on the first line of your recipe.
"""

# What the docs call the types of values.
KIND_NAMES = {
    str: "text",
    int: "whole number",
    float: "number",
    bool: "true or false",
    dict: "mapping",
}


def reference() -> str:
    """The page as Markdown; it changes only when the models do."""
    return "\n".join([_INTRODUCTION, *_sections(), *_backends(), *_options(), *_quantizations()])


def _sections() -> Iterator[str]:
    yield from section_table("Top level", Recipe, "")
    for name, field in Recipe.model_fields.items():
        model = field.annotation
        if isinstance(model, type) and issubclass(model, BaseModel):
            yield from section_table(f"`{name}`", model, f"{name}.")


def section_table(title: str, model: type[BaseModel], prefix: str) -> Iterator[str]:
    """The lines of a section's table, with its heading.

    Args:
        title: Of the section.
        model: Whose keys are listed, with those of the sections in it.
        prefix: Before each key; empty for the top level, whose sections have tables of their own.
    """
    yield f"## {title}\n"
    if prefix:
        yield f"{_one_line(model.__doc__)}\n"
    yield "| key | type | default | what it does |"
    yield "| --- | --- | --- | --- |"
    yield from _rows(model, prefix)
    yield ""


def _rows(model: type[BaseModel], prefix: str) -> Iterator[str]:
    texts = key_texts(model)
    for attribute, field in model.model_fields.items():
        name = field.alias or attribute
        text = _one_line(texts.get(attribute)) + _bounds(field)
        kind = field.annotation
        section = section_of(kind)
        if section and not prefix:
            yield f"| `{name}` | section | {_default(field)} | {text} |"
        elif section:
            if field.default is None:
                yield f"| `{prefix}{name}` | section or null | {_default(field)} | {text} |"
            yield from _rows(section, f"{prefix}{name}.")
        else:
            values = _choices(field) or _kind(kind)
            yield f"| `{prefix}{name}` | {values} | {_default(field)} | {text} |"


def _kind(annotation: Any) -> str:
    if get_origin(annotation) in (Union, types.UnionType):
        return _kind(next(a for a in get_args(annotation) if a is not type(None)))
    if get_origin(annotation) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(annotation))
    return KIND_NAMES.get(get_origin(annotation) or annotation, "value")


def _choices(field: FieldInfo) -> str | None:
    """The values of a field whose type does not say them; None for another field."""
    takes = [item.text for item in field.metadata if isinstance(item, Takes)]
    if takes:
        return re.sub(r"\bauto\b", "`auto`", takes[0])
    if not any(isinstance(item, Choice) for item in field.metadata):
        return None
    # Other packages may add to them; this page is etdeploy's.
    return ", ".join(f"`{name}`" for name in exporting_backends())


def _default(field: FieldInfo) -> str:
    value = field.default
    if field.is_required():
        return "(needed)"
    if value is None or value is PydanticUndefined or isinstance(value, BaseModel):
        return ""
    shown = list(value) if isinstance(value, tuple) else value
    return f"`{str(shown).lower() if isinstance(shown, bool) else shown}`"


def _bounds(field: FieldInfo) -> str:
    found = {
        name: getattr(item, name)
        for item in field.metadata
        for name in ("ge", "gt", "le", "multiple_of")
        if hasattr(item, name)
    }
    low, high = found.get("ge", found.get("gt")), found.get("le")
    if low is None and high is None:
        return ""
    above = "above " if "gt" in found else "from "
    parts = [
        f"{above}{low}" if low is not None else "",
        f"to {high}" if high is not None else "",
        f"in steps of {found['multiple_of']}" if "multiple_of" in found else "",
    ]
    return f" ({' '.join(p for p in parts if p)})"


def _one_line(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|")


def _backends() -> Iterator[str]:
    yield "## Backends\n"
    yield "| backend | delegate | `export.quantization` | `export.overrides` | needs |"
    yield "| --- | --- | --- | --- | --- |"
    for backend in exporting_backends().values():
        schemes = ", ".join(f"`{name}`" for name in backend.quantizations)
        delegate = f"`{backend.delegate_id}`" if backend.delegate_id else "none"
        mixed = ", ".join(f"`{name}`" for name in backend.overrides) or "none"
        if backend.with_floats:
            mixed += f"; with {' and '.join(f'`{s}`' for s in backend.with_floats)} only `none`"
        row = (f"`{backend.name}`", delegate, schemes, mixed, backend.needs or "nothing more")
        yield f"| {' | '.join(row)} |"
    yield ""


def _options() -> Iterator[str]:
    yield "## Options of backends\n"
    yield "Keys of `export.options`.\n"
    yield "| backend | option | type | default | what it does |"
    yield "| --- | --- | --- | --- | --- |"
    for backend in exporting_backends().values():
        for option in backend.options:
            kind = ", ".join(f"`{c}`" for c in option.choices) or KIND_NAMES[type(option.default)]
            default = str(option.default)
            shown = default.lower() if isinstance(option.default, bool) else default
            row = (f"`{backend.name}`", f"`{option.name}`", kind, f"`{shown}`", option.text)
            yield f"| {' | '.join(row)} |"
    yield ""


def _quantizations() -> Iterator[str]:
    yield "## Quantization\n"
    yield "| scheme | what it does |"
    yield "| --- | --- |"
    for name, text in QUANTIZATIONS.items():
        yield f"| `{name}` | {text} |"
    yield ""


def key_texts(model: type[BaseModel]) -> dict[str, str]:
    """The text of each documented key of a section."""
    [section] = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    assert isinstance(section, ast.ClassDef)  # noqa: S101 - for the type checker
    texts = {}
    for key, text in pairwise(section.body):
        if isinstance(key, ast.AnnAssign) and isinstance(key.target, ast.Name):
            match text:
                case ast.Expr(ast.Constant(str(found))):
                    texts[key.target.id] = inspect.cleandoc(found)
    return texts


def sections(model: type[BaseModel]) -> dict[str, type[BaseModel]]:
    """A model and all models below it, by class name."""
    found = {model.__name__: model}
    for field in model.model_fields.values():
        if section := section_of(field.annotation):
            found |= sections(section)
    return found


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
        "properties": dict(_schema_options()),
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


def _schema_options() -> Iterator[tuple[str, dict[str, Any]]]:
    """The options of all backends; one that several have takes what any of them does."""
    by_name: dict[str, list[dict[str, Any]]] = {}
    for backend in (exporting_backends() | plugged_backends()).values():
        for option in backend.options:
            takes = {"enum": list(option.choices)} if option.choices else {}
            text = f"{backend.name}: {option.text}"
            kind = {"type": _TYPES[type(option.default)], "description": text, **takes}
            by_name.setdefault(option.name, []).append(kind)
    for name, kinds in by_name.items():
        yield name, kinds[0] if len(kinds) == 1 else {"anyOf": kinds}


def _drop_null(field: dict[str, Any]) -> None:
    """Removes `null`: a model source that is set has a value."""
    options = [option for option in field.pop("anyOf", []) if option != {"type": "null"}]
    if len(options) == 1:
        field.update(options[0])
    field.pop("default", None)
