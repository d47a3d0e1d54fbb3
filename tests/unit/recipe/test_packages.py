"""Recipes of other packages."""

from __future__ import annotations

from pathlib import Path

import pytest
from click import Context
from click.testing import CliRunner

from etdeploy.cli.verbs.recipes import list_recipes, show
from etdeploy.core.errors import RecipeError, UsageError
from etdeploy.recipe.find import GROUP, packaged_recipe, packaged_recipes
from etdeploy.recipe.load import load_recipe
from tests.support.facts import lacks
from tests.support.plugins import install_plugin

FAST = "description: A fast one\nmodel: {example: mlp}\nbenchmark: {warmup: 7}\n"


@pytest.fixture
def recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of recipes of an installed package."""
    install_plugin(tmp_path, monkeypatch, GROUP, "lab = etdeploy_lab.recipes")
    folder = tmp_path / "etdeploy_lab" / "recipes"
    folder.mkdir(parents=True)
    (folder / "fast.yaml").write_text(FAST)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return folder


def test_others_can_extend_it(recipes: Path) -> None:
    (recipes / "faster.yaml").write_text("extends: fast.yaml\nbenchmark: {iterations: 3}\n")
    Path("mine.yaml").write_text("extends: lab/faster\n")
    benchmark = load_recipe("mine.yaml").recipe.benchmark
    assert (benchmark.warmup, benchmark.iterations) == (7, 3)


@pytest.mark.usefixtures("recipes")
def test_a_file_of_that_path_comes_first() -> None:
    Path("lab").mkdir()
    Path("lab/fast").write_text("model: {example: convnet}\n")
    assert load_recipe("lab/fast").recipe.model.example == "convnet"


@pytest.mark.parametrize("name", ["lab/../secret", "lab/..", "lab/", "lab", "lab/a/b", "lab/a\\b"])
def test_a_name_does_not_leave_the_packages_folder(recipes: Path, name: str) -> None:
    (recipes.parent / "secret.yaml").write_text(FAST)
    assert packaged_recipe(name) is None


@pytest.mark.usefixtures("recipes")
def test_a_wrong_name_is_told_with_the_right_one() -> None:
    with pytest.raises(RecipeError) as told:
        load_recipe("lab/fist")
    assert "did you mean 'lab/fast'?" in str(told.value)
    assert ": lab/fast." in str(told.value.remedy)


def test_a_broken_one_is_listed_with_its_package(recipes: Path) -> None:
    (recipes / "bad.yaml").write_text("model: {exampel: mlp}\n")
    said = CliRunner().invoke(list_recipes, catch_exceptions=False)
    assert said.exit_code == 0
    assert not lacks(said.stderr, "lab/bad of etdeploy-lab 1.2", "bad.yaml:1:9", "'model.exampel'")
    assert "lab/fast" in said.stdout
    assert "lab/bad" not in said.stdout


def test_a_package_that_leads_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_plugin(tmp_path, monkeypatch, GROUP, "lab = no_such_package.recipes")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"'lab' .* etdeploy-lab 1\.2"):
        load_recipe("lab/fast")
    assert packaged_recipes() == ()


def test_a_shell_completes_their_names(recipes: Path) -> None:
    (recipes / "slow.yaml").write_text(FAST)
    parameter = next(p for p in show.params if p.name == "recipe")
    found = parameter.shell_complete(Context(show), "lab/")
    assert [item.value for item in found if item.type == "plain"] == ["lab/fast", "lab/slow"]
