"""`export.llm_config`: an LlmConfig in a recipe or in its own file, and what contradicts it."""

from __future__ import annotations

from pathlib import Path

import pytest

from etdeploy.core.errors import RecipeError
from etdeploy.recipe.load import load_recipe
from etdeploy.recipe.paths import relative_paths

CONFIG = """\
base: {checkpoint: model.pth, params: params.json}
export: {max_context_length: 512}
backend: {xnnpack: {enabled: true}}
quantization: {qmode: 8da4w, group_size: 32}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("model.pth", "params.json"):
        (tmp_path / name).touch()
    (tmp_path / "configs").mkdir()
    (tmp_path / "config.yaml").write_text(CONFIG)
    return tmp_path


def embedded(more: str = "", config: str = CONFIG) -> str:
    inner = "".join(f"    {line}\n" for line in config.splitlines())
    Path("r.yaml").write_text(f"{more}export:\n  llm_config:\n{inner}")
    return "r.yaml"


def problems_of(recipe: str, *overrides: str) -> str:
    with pytest.raises(RecipeError) as caught:
        load_recipe(recipe, overrides)
    return "\n".join(map(str, caught.value.problems))


def test_it_names_the_model_the_backend_and_the_scheme(folder: Path) -> None:
    export = load_recipe(embedded()).recipe.export
    assert (export.backend, export.quantization) == ("xnnpack", "8da4w")
    assert export.llm_config
    assert export.llm_config["base"]["checkpoint"] == f"{folder}/model.pth"


def test_a_file_is_the_same_with_places_of_its_own(folder: Path) -> None:
    Path("r.yaml").write_text("export: {llm_config: config.yaml}\n")
    loaded = load_recipe("r.yaml")
    assert loaded.recipe.export.llm_config == load_recipe(embedded()).recipe.export.llm_config
    place = loaded.places["export", "llm_config", "quantization", "qmode"]
    assert str(place) == "config.yaml:4:16"
    del folder


def test_an_override_changes_one_key_of_a_file() -> None:
    Path("r.yaml").write_text("export: {llm_config: config.yaml}\n")
    config = load_recipe("r.yaml", ["export.llm_config.model.use_kv_cache=true"]).recipe.export
    assert config.llm_config
    assert config.llm_config["model"] == {"use_kv_cache": True}
    assert config.llm_config["export"] == {"max_context_length": 512}


def test_paths_are_relative_to_the_file_that_has_them(folder: Path) -> None:
    (folder / "configs" / "config.yaml").write_text(CONFIG)
    Path("r.yaml").write_text("export: {llm_config: configs/config.yaml}\n")
    found = problems_of("r.yaml")
    assert f"configs/config.yaml:1:8: export.llm_config.base.checkpoint: the file {folder}" in found
    assert "/configs/params.json does not exist" in found


def test_the_paths_of_a_record_are_relative(folder: Path) -> None:
    content = load_recipe(embedded()).recipe.model_dump(mode="json")
    told = relative_paths(content, folder / "runs")
    assert told["export"]["llm_config"]["base"] == {
        "checkpoint": "../model.pth",
        "params": "../params.json",
    }


@pytest.mark.parametrize(
    ("override", "place", "says"),
    [
        ("model.hf=org/model", "model.hf", "base.checkpoint and base.params"),
        ("export.backend=portable", "export.backend", "enables xnnpack"),
        ("export.quantization=8da8w", "export.quantization", "qmode 8da4w"),
        ("export.group_size=64", "export.group_size", "has 32"),
        ("export.generation={context: 128}", "export.generation.context", "has 512"),
        ("export.embeddings=8w", "export.embeddings", "quantization.embedding_quantize"),
        ("export.rewrites=none", "export.rewrites", "leave this key out"),
    ],
)
def test_a_contradiction_is_reported_with_its_place(override: str, place: str, says: str) -> None:
    found = problems_of(embedded(), override)
    assert found.startswith(f"--set {override.partition('=')[0]}: {place}: ")
    assert says in found


def test_what_agrees_may_be_repeated() -> None:
    same = ["export.backend=xnnpack", "export.quantization=8da4w", "export.group_size=32"]
    same += ["export.generation={context: 512}"]
    assert load_recipe(embedded(), same).recipe.export.backend == "xnnpack"


@pytest.mark.parametrize(
    ("backend", "name"),
    [
        ("{}", "portable"),
        ("{vulkan: {enabled: true}}", "vulkan"),
        ("{ethosu: {enabled: true}}", "portable"),
        ("{vulkan: {enabled: true}, xnnpack: {enabled: true}}", "xnnpack"),
    ],
)
def test_the_backend_is_the_one_that_the_exporter_lowers_to(backend: str, name: str) -> None:
    assert load_recipe(embedded(config=f"backend: {backend}\n")).recipe.export.backend == name


def test_a_recipe_without_model_and_config() -> None:
    Path("r.yaml").write_text("export: {backend: xnnpack}\n")
    assert "the key 'model' is missing" in problems_of("r.yaml")
    Path("r.yaml").write_text("model: {}\n")
    assert "name one model source" in problems_of("r.yaml")


def test_a_file_that_is_missing_or_no_mapping() -> None:
    Path("r.yaml").write_text("export: {llm_config: other.yaml}\n")
    assert "r.yaml:1:10: export.llm_config: " in problems_of("r.yaml")
    Path("other.yaml").write_text("- base\n")
    assert "other.yaml:1:1: an LlmConfig is a mapping" in problems_of("r.yaml")
