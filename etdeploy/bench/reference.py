"""docs/records.md, generated from the models of the run record."""

from __future__ import annotations

import ast
import inspect
import itertools
import re
import textwrap
import types
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel

from etdeploy.bench.records.record import RunRecord
from etdeploy.bench.results_folder import DESCRIPTIONS
from etdeploy.core.values import StrEnum
from etdeploy.recipe.reference import KIND_NAMES

_INTRODUCTION = """# Run records

<!-- Generated from etdeploy/bench/records/record.py by `doit run reference`; edit there. -->

Each measurement creates a folder in `etdeploy-out/`, or in the folder that `--output` names. Its name consists of time, recipe, device and some random digits. `record.json` in it has the numbers and everything that is needed to interpret them. The folder is self-contained: zip it, mail it, and every path in it still leads to its file.

`etdeploy run --json` prints the record with one more key, `folder`: its place on this machine.

## Version

Every change of the keys raises `schema_version`. etdeploy reads records of its own version and refuses those of another one, with a message and exit code 2: read them with the etdeploy that wrote them, or measure again.

## Paths of the machine that measured

Paths in `record.json` are relative: those of `files` to the record's folder, those of `recipe` to the folder of the recipe's file. Absolute paths remain only in values that were built or written that way: `runner.options`, `recipe.content.model.arguments` and `recipe.content.runtime.cmake`. `export.json` names the files with the model's code, and `plan.json` the tools.
"""  # noqa: E501 - a paragraph of Markdown is one line


def reference() -> str:
    """The page as Markdown; it changes only when the models do."""
    return "\n".join([_INTRODUCTION, *_files(), *_keys()])


def descriptions(model: type[BaseModel]) -> dict[str, str]:
    """What each field is, from the class docstring's `Attributes:` and the strings below fields."""
    found = _from_section(model) | _from_strings(model)
    # JSON has null where Python has None.
    return {name: re.sub(r"\bNone\b", "null", text) for name, text in found.items()}


def _files() -> Iterator[str]:
    yield "## Files\n"
    yield "| `files.` | what it is |"
    yield "| --- | --- |"
    for name, text in DESCRIPTIONS.items():
        yield f"| `{name}` | {text} |"
    yield (
        "\nWith `benchmark.sizes`, these are of the first size, and each further size has its own "
        "`outputs`, `timing` and `memory`: `timing-long`, `timing-long.2` and so on for the size "
        "`long`. After a sweep of `runtime.threads`, these are of the fastest number, and each "
        "other has its own `outputs` and `timing`: `timing.threads-1`, `timing.threads-1.2`.\n"
    )


def _keys() -> Iterator[str]:
    yield "## Keys\n"
    yield "Units are in the names: `_ms` milliseconds, `seconds`, `_bytes`, `_celsius`, `_percent`."
    yield from _section("Top level", RunRecord, "")
    waiting: list[tuple[str, type[BaseModel]]] = [("", RunRecord)]
    told: set[str] = set()
    while waiting:
        prefix, model = waiting.pop(0)
        for name, field in model.model_fields.items():
            found, marks = _nested(field.annotation)
            for nested in found:
                path = f"{prefix}{name}{marks}"
                title = f"`{path}`{_kind_of(nested) if len(found) > 1 else ''}"
                if title not in told:  # two kinds of a value have some keys in common
                    told.add(title)
                    yield from _section(title, nested, f"{path}.")
                    waiting.append((f"{path}.", nested))


def _section(title: str, model: type[BaseModel], prefix: str) -> Iterator[str]:
    yield f"\n### {title}\n"
    if prefix:
        yield f"{_summary(model)}\n"
    yield "| key | type | what it is |"
    yield "| --- | --- | --- |"
    texts = descriptions(model)
    for name, field in model.model_fields.items():
        yield f"| `{prefix}{name}` | {_kind(field.annotation)} | {texts.get(name, '')} |"


def _kind_of(model: type[BaseModel]) -> str:
    """What tells one of several models at a place from the others."""
    return f" where `kind` is `{model.model_fields['kind'].default}`"


def _nested(annotation: Any) -> tuple[list[type[BaseModel]], str]:
    """The models in an annotation, several in a union, and how a key below them is written."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation], ""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is tuple:
        return _nested(arguments[0])[0], "[]"
    if origin is dict:
        return _nested(arguments[1])[0], ".*"
    united = arguments if origin is types.UnionType else ()
    return [model for argument in united for model in _nested(argument)[0]], ""


def _kind(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is types.UnionType:
        kinds = dict.fromkeys(_kind(a) for a in arguments if a is not type(None))
        return " or ".join([*kinds, *(["null"] if type(None) in arguments else [])])
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if isinstance(annotation, type) and issubclass(annotation, StrEnum):
        return ", ".join(f"`{value}`" for value in annotation)
    if origin is tuple:
        return f"list of {_kind(arguments[0])}"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "object"
    return KIND_NAMES.get(origin or annotation, "value")


def _summary(model: type[BaseModel]) -> str:
    """The class docstring before its attributes."""
    text = inspect.cleandoc(model.__doc__ or "").split("\nAttributes:")[0]
    return re.sub(r"\bNone\b", "null", " ".join(text.split()))


def _from_section(model: type[BaseModel]) -> dict[str, str]:
    doc = inspect.cleandoc(model.__doc__ or "")
    _, _, section = doc.partition("\nAttributes:\n")
    found: dict[str, str] = {}
    for entry in re.split(r"\n(?=\S)", textwrap.dedent(section)):
        names, _, text = " ".join(entry.split()).partition(": ")
        found |= dict.fromkeys(names.split(", "), text)
    return found


def _from_strings(model: type[BaseModel]) -> dict[str, str]:
    [tree] = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    body = tree.body if isinstance(tree, ast.ClassDef) else []
    return {
        field.target.id: " ".join(text.value.value.split())
        for field, text in itertools.pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }
