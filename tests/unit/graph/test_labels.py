"""Names by which jobs and tasks are told apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from etdeploy.graph.jobs import RecipeDevicePair, recipe_labels, served
from etdeploy.recipe.load import LoadedRecipe, load_recipe

_TEXT = "model: {example: mlp}\nexport: {backend: portable}\n"
EVERYONE = [RecipeDevicePair(r, d) for r in ("a", "b") for d in ("host", "qemu")]


def recipe(path: Path, name: str = "") -> LoadedRecipe:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_TEXT + (f"name: {name}\n" if name else ""))
    return load_recipe(str(path))


def test_files_with_the_same_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    paths = ("int8/x/mlp.yaml", "fp32/x/mlp.yaml", "other.yaml")
    assert recipe_labels([recipe(tmp_path / p) for p in paths]) == [
        "int8/x/mlp.yaml", "fp32/x/mlp.yaml", "other",
    ]  # fmt: skip
    found = [recipe(tmp_path / name, "net") for name in ("a.yaml", "b.yaml")]
    assert recipe_labels(found) == ["a.yaml", "b.yaml"]


@pytest.mark.parametrize(
    ("some", "text"),
    [
        (EVERYONE, "all"),
        (EVERYONE[:1], "a on host"),
        (EVERYONE[:2], "a"),
        (EVERYONE[::2], "a on host, b on host"),
        (EVERYONE[:3], "a, b on host"),
    ],
)
def test_a_task_says_whom_it_serves(some: list[RecipeDevicePair], text: str) -> None:
    assert served(some, EVERYONE) == text


def test_what_all_jobs_have_in_common_is_left_out() -> None:
    devices = [RecipeDevicePair("a", d) for d in ("host", "qemu", "phone")]
    assert served(devices[:2], devices) == "host, qemu"
    recipes = [RecipeDevicePair(r, "host") for r in "abcde"]
    assert served(recipes[:2], recipes) == "a, b"
    assert served(recipes[:4], recipes) == "a, b, c and 1 more"
