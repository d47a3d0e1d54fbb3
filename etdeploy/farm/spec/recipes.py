"""The recipes of a farm, by their labels."""

from __future__ import annotations

from collections.abc import Sequence

from etdeploy.core.errors import RecipeError
from etdeploy.farm.spec.findings import Findings
from etdeploy.farm.spec.written import RecipeEntry
from etdeploy.recipe.find import find_recipe
from etdeploy.recipe.load import LoadedRecipe, Override, load_recipe
from etdeploy.recipe.place import Place


def load_entries(entries: Sequence[RecipeEntry], findings: Findings) -> dict[str, LoadedRecipe]:
    """Loads every recipe; what is wrong with one is noted, and keeps no other from being read."""
    loaded: dict[str, LoadedRecipe] = {}
    places: dict[str, Place] = {}
    for number, entry in enumerate(entries):
        found = _load(number, entry, findings)
        if found is None:
            continue
        label = entry.label or found.name
        keys = ("recipes", number, *(("label",) if entry.label else ()))
        if label in loaded:
            findings.add(
                keys,
                f"two recipes have the label {label!r}, the other one at {places[label]}",
                f"give one another: {{recipe: {entry.recipe}, label: {label}-2}}",
            )
            continue
        loaded[label], places[label] = found, findings.place(keys)
    return loaded


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
