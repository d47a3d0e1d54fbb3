"""Options that a backend declares and a recipe sets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from etdeploy.backends.options import Option, option_problems, option_values
from etdeploy.cache.workspace import Workspace
from etdeploy.core.errors import RecipeError
from etdeploy.export.derive import export_spec
from etdeploy.recipe.load import load_recipe
from etdeploy.recipe.model import Recipe
from tests.support.export import program_key
from tests.support.facts import lacks

_OPTIONS = (
    Option("cores", 4, "How many."),
    Option("scale", 1.5, "How much."),
    Option("unit", "all", "Where.", choices=("all", "cpu")),
    Option("cache", False, "Whether."),
)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"cores": 2, "scale": 2, "unit": "cpu", "cache": True}, None),
        ({"cores": None, "unit": None}, None),
        ({"cores": True}, "takes a whole number, not true"),
        ({"cores": 1.5}, "takes a whole number, not 1.5"),
        ({"scale": "2"}, "takes a number, not '2'"),
        ({"scale": False}, "takes a number, not false"),
        ({"unit": "gpu"}, "takes all or cpu, not 'gpu'"),
        ({"unit": ["cpu"]}, "takes text, not a list"),
        ({"cache": 1}, "takes true or false, not 1"),
        ({"cahce": True}, "the backend it has no option 'cahce' (did you mean 'cache'?)"),
        ({"x": 1}, "the backend it has no option 'x' (it has cores, scale, unit, cache)"),
    ],
)
def test_what_does_not_fit_is_told(given: dict[str, Any], problem: str | None) -> None:
    found = [text for _, text in option_problems("it", _OPTIONS, dict(given))]
    assert found == ([problem] if problem else [])


def test_what_is_not_set_has_its_default() -> None:
    assert option_values(_OPTIONS, {"cores": None, "scale": 2}) == {
        "cores": 4,
        "scale": 2.0,
        "unit": "all",
        "cache": False,
    }


def test_the_place_of_a_wrong_option_is_told(tmp_path: Path) -> None:
    file = tmp_path / "r.yaml"
    file.write_text("model: {example: mlp}\nexport:\n  options:\n    per_op_mod: true\n")
    with pytest.raises(RecipeError) as told:
        load_recipe(str(file))
    assert not lacks(told.value, "r.yaml:4:5:", "export.options.per_op_mod:", "xnnpack")


def test_an_option_makes_another_program(tmp_path: Path) -> None:
    keys = set()
    for options in ({}, {"per_op_mode": False}, {"per_op_mode": True}):
        recipe = Recipe.model_validate(
            {"model": {"example": "mlp"}, "export": {"options": options}}
        )
        keys.add(program_key(export_spec(recipe), Workspace(tmp_path)))
    assert len(keys) == 2
