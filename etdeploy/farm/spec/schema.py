"""The JSON Schema of farm.yaml, and docs/farm-yaml.md: both from the models."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from etdeploy.backends.schemes import DEFAULT_RECIPE
from etdeploy.core.files.basic import write_if_changed
from etdeploy.farm.spec.written import FarmFile, Group, RecipeEntry
from etdeploy.recipe.model import section_of
from etdeploy.recipe.reference import described_schema, section_table

_INTRODUCTION = f"""# farm.yaml

<!-- Generated from etdeploy/farm/spec/written.py by `doit run reference`; edit there. -->

[farm.md](farm.md) describes the farm. The smallest farm.yaml:

```yaml
recipes: [{DEFAULT_RECIPE}]
devices: {{phones: {{kind: android}}}}
```

Everything else has a default. `etdeploy farm init` writes one for the devices that are plugged in,
and `etdeploy farm plan` tells everything that is wrong with it, each with its line.

* An empty value (`null`) means the default.
* Paths are relative to the file.
* Times need quotes: YAML reads `22:00` as the number 1320.
* `etdeploy farm schema > farm.schema.json` gives editors completion: for the YAML language server,
  put `# yaml-language-server: $schema=farm.schema.json` on the first line of your farm.yaml.
"""
# Sections in lists and mappings, and the key that each is below.
_ENTRIES: dict[type[BaseModel], str] = {
    RecipeEntry: "recipes[]",
    Group: "devices.NAME",
}


def schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a farm.yaml; descriptions are the keys' docstrings."""
    content = described_schema(FarmFile)
    content["required"] = ["recipes", "devices"]
    # A recipe alone is its name.
    content["properties"]["recipes"]["items"] = {
        "anyOf": [{"type": "string"}, content["properties"]["recipes"]["items"]]
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **content,
        "title": "etdeploy farm",
    }


def reference() -> str:
    """docs/farm-yaml.md as Markdown; it changes only when the models do."""
    return "\n".join([_INTRODUCTION, *_tables()])


def _tables() -> Iterator[str]:
    yield from section_table("Top level", FarmFile, "")
    for name, field in FarmFile.model_fields.items():
        model = section_of(field.annotation)
        if model is not None:
            shown = _ENTRIES.get(model, name)
            yield from section_table(f"`{shown}`", model, f"{shown}.")


def write_reference() -> None:
    """Writes docs/farm-yaml.md from the models."""
    write_if_changed(Path("docs/farm-yaml.md"), reference())
