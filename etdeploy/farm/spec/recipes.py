"""The recipes of a farm, by their labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from etdeploy.core.errors import RecipeError
from etdeploy.core.files.basic import not_regular
from etdeploy.farm.spec.findings import Findings, dotted
from etdeploy.farm.spec.written import RecipeEntry
from etdeploy.recipe.find import find_recipe
from etdeploy.recipe.load import LoadedRecipe, Override, load_recipe
from etdeploy.recipe.place import KeyPath, Place


@dataclass(frozen=True)
class Entries:
    """What a farm measures.

    Attributes:
        recipes: By label.
        apps: Apps that are built already, by the label of their recipe.
    """

    recipes: dict[str, LoadedRecipe] = field(default_factory=dict)
    apps: dict[str, Path] = field(default_factory=dict)


def load_entries(entries: Sequence[RecipeEntry], findings: Findings) -> Entries:
    """Loads every recipe; what is wrong with one is noted, and keeps no other from being read."""
    loaded = Entries()
    places: dict[str, Place] = {}
    for number, entry in enumerate(entries):
        found = _load(number, entry, findings)
        if found is None:
            continue
        label = entry.label or found.name
        keys = ("recipes", number, *(("label",) if entry.label else ()))
        if label in loaded.recipes:
            findings.add(
                keys,
                f"two recipes have the label {label!r}, the other one at {places[label]}",
                f"give one another: {{recipe: {entry.recipe}, label: {label}-2}}",
            )
            continue
        loaded.recipes[label], places[label] = found, findings.place(keys)
        if entry.app and (app := _app(("recipes", number, "app"), entry.app, findings)):
            loaded.apps[label] = app
    return loaded


def _app(keys: KeyPath, text: str, findings: Findings) -> Path | None:
    """The app's archive; None, with a note, for what is none."""
    path = findings.path(keys, text)
    if path is None:
        return None
    if what := not_regular(path) if path.exists() else "missing":
        findings.add(keys, f"{dotted(keys)}: the file {path} is {what}", _BUILD)
    elif path.suffix.lower() != _ARCHIVE:
        findings.add(keys, f"{dotted(keys)} takes an {_ARCHIVE}, and {path} is none", _BUILD)
    return path


_ARCHIVE = ".ipa"
_BUILD = "etdeploy app ios writes the project, which a Mac builds"


def _load(number: int, entry: RecipeEntry, findings: Findings) -> LoadedRecipe | None:
    keys = ("recipes", number)
    place = findings.place((*keys, "recipe"))
    try:
        path = find_recipe(entry.recipe, findings.folder, place)
        overrides = [
            Override(text, str(findings.place((*keys, "set", i))), findings.folder)
            for i, text in enumerate(entry.set)
        ]
        return load_recipe(str(path), overrides)
    except RecipeError as error:
        findings.of_another_file(error.problems, error.remedy)
        return None
