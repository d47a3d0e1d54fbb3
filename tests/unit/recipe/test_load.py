"""Recipes: what is read, merged and overridden, and the exact text for what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from etdeploy.core.errors import RecipeError
from etdeploy.recipe.document import read_document
from etdeploy.recipe.load import load_recipe
from etdeploy.recipe.paths import relative_paths
from etdeploy.recipe.reference import reference, schema
from etdeploy.recipe.sections.base import Section

ROOT = Path(__file__).resolve().parents[3]
MLP = "model: {example: mlp}\n"
SMALLEST = "model: {example: mlp}\nexport: {backend: xnnpack}\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(name: str, content: str | bytes) -> str:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return name


def test_extends_changes_only_what_it_names() -> None:
    write("base/base.yaml", SMALLEST + "benchmark: {iterations: 7, warmup: 1}\nname: base\n")
    child = write("child.yaml", "extends: base/base.yaml\nbenchmark: {iterations: 9}\n")
    loaded = load_recipe(child)
    assert loaded.name == "child"
    assert (loaded.recipe.benchmark.iterations, loaded.recipe.benchmark.warmup) == (9, 1)
    assert [path.name for path, _ in loaded.files] == ["child.yaml", "base.yaml"]


def test_another_model_source_replaces_the_one_that_is_extended() -> None:
    write("make.py", "")
    write("base.yaml", "model: {example: mlp, arguments: {width: 8}}\n")
    child = write("child.yaml", "extends: base.yaml\nmodel: {python: make.py:make}\n")
    model = load_recipe(child).recipe.model
    assert (model.example, model.arguments) == (None, {})
    assert load_recipe("base.yaml", ["model.python=make.py:make"]).recipe.model == model


def test_paths_are_relative_to_the_file_that_names_them() -> None:
    for name in ("there/make.py", "there/w.pt", "here.pt"):
        write(name, "")
    write("there/base.yaml", "model: {python: make.py:make, weights: w.pt}\n")
    child = write("child.yaml", "extends: there/base.yaml\n")
    model = load_recipe(child).recipe.model
    here = Path.cwd()
    assert model.python == f"{here}/there/make.py:make"
    assert model.weights == f"{here}/there/w.pt"
    assert load_recipe(child, ["model.weights=here.pt"]).recipe.model.weights == f"{here}/here.pt"


def test_overrides_are_read_as_yaml_and_the_last_one_wins() -> None:
    loaded = load_recipe(
        "xnnpack",
        [
            "benchmark.iterations=3",
            "benchmark.iterations=4",
            "benchmark.profile=false",
            "benchmark.tolerance={max_abs_error: 0.5}",
            "benchmark.timeout_s=2",
        ],
    )
    benchmark = loaded.recipe.benchmark
    assert (benchmark.iterations, benchmark.profile, benchmark.timeout_s) == (4, False, 2.0)
    assert benchmark.tolerance.max_abs_error == 0.5


def test_the_schema_describes_every_key_and_is_json() -> None:
    content = json.loads(json.dumps(schema()))
    assert content["$schema"].endswith("2020-12/schema")
    assert content["additionalProperties"] is False
    for section in [content, *content["$defs"].values()]:
        for name, field in section["properties"].items():
            described = field.get("description") or "$ref" in field
            assert described, f"{name} has no description"
    # A start does not read the texts.
    assert Section.model_config.get("use_attribute_docstrings") is None


def test_the_reference_is_that_of_the_models() -> None:
    committed = (ROOT / "docs" / "recipes.md").read_text()
    assert committed == reference(), "docs/recipes.md is old: doit run reference"


def test_paths_of_a_record_are_relative_to_the_recipes_folder(tmp_path: Path) -> None:
    content: dict[str, Any] = {
        "name": None,
        "model": {"python": f"{tmp_path}/a/net.py:make", "arguments": {"table": "/srv/table"}},
        "export": {"calibration": "package.module:inputs", "custom_ops": None},
        "runtime": {"source": f"{tmp_path}/executorch", "cmake": {"DIR": "/opt/x"}},
    }
    assert relative_paths(content, tmp_path / "a") == {
        "name": None,
        "model": {"python": "net.py:make", "arguments": {"table": "/srv/table"}},
        "export": {"calibration": "package.module:inputs", "custom_ops": None},
        "runtime": {"source": "../executorch", "cmake": {"DIR": "/opt/x"}},
    }
    assert content["model"]["python"] == f"{tmp_path}/a/net.py:make"


@pytest.mark.parametrize(
    "text",
    [
        "a: 1\nb: 2.5\nc: true\nd: ~\ne: text\nf: '5'\ng: 0x1f\nh: 1_000\n",
        "a: {b: [1, {c: d}], e: []}\nf: {}\n",
        "base: &base {x: 1, y: 2}\nchild: {<<: *base, y: 3}\n",
        "one: &one {x: 1}\ntwo: &two {x: 2, z: 2}\nboth: {<<: [*one, *two]}\n",
        "a: &a [1, 2]\nb: *a\nc: |\n  two\n  lines\n",
        "'quoted key': \"caf\\u00e9\"\nümlaut: naïve\n",
    ],
)
def test_data_is_what_safe_load_gives(text: str) -> None:
    document = read_document(Path(write("r.yaml", text)))
    assert document.data == yaml.safe_load(text)
    assert document.problems == []


def test_a_byte_order_mark_and_windows_line_ends_are_read() -> None:
    name = write("r.yaml", b"\xef\xbb\xbfmodel:\r\n  example: mlp\r\n")
    assert load_recipe(name).recipe.model.example == "mlp"


def test_dates_stay_text() -> None:
    name = write("r.yaml", "model: {example: mlp, arguments: {day: 2024-02-30}}\n")
    assert load_recipe(name).recipe.model.arguments == {"day": "2024-02-30"}


def test_an_empty_value_takes_back_what_is_inherited() -> None:
    write("base.yaml", MLP + "benchmark: {iterations: 7, warmup: 1}\nexport: {seed: 3}\n")
    child = write("child.yaml", "extends: base.yaml\nbenchmark: {iterations: }\nexport: ~\n")
    recipe = load_recipe(child).recipe
    assert (recipe.benchmark.iterations, recipe.benchmark.warmup, recipe.export.seed) == (50, 1, 0)


def test_an_empty_source_is_no_other_source() -> None:
    write("base.yaml", MLP)
    child = write("child.yaml", "extends: base.yaml\nmodel: {program: , arguments: {width: 8}}\n")
    model = load_recipe(child).recipe.model
    assert (model.example, model.arguments) == ("mlp", {"width": 8})


def test_the_order_of_overrides_of_different_keys_does_not_matter() -> None:
    write("make.py", "")
    write("w.pt", "")
    overrides = ["model.weights=w.pt", "model.python=make.py:make"]
    one = load_recipe("xnnpack", overrides).recipe.model
    assert one == load_recipe("xnnpack", overrides[::-1]).recipe.model
    assert one.weights == f"{Path.cwd()}/w.pt"


def test_a_missing_file_that_a_child_replaces_is_no_problem() -> None:
    write("make.py", "")
    write("base.yaml", "model: {python: make.py:make, weights: gone.pt}\n")
    write("w.pt", "")
    child = write("child.yaml", "extends: base.yaml\nmodel: {weights: w.pt}\n")
    assert load_recipe(child).recipe.model.weights == f"{Path.cwd()}/w.pt"
    with pytest.raises(RecipeError, match=r"base\.yaml:1:31: .*/gone\.pt"):
        load_recipe("base.yaml")


def test_a_bundled_name_with_a_suffix_is_that_recipe_unless_there_is_such_a_file(
    tmp_path: Path,
) -> None:
    for name in ("qnn.yaml", "qnn.yml"):
        assert load_recipe(name).path == load_recipe("qnn").path
    Path("qnn.yaml").write_text("model: {example: mlp}\n")
    assert load_recipe("qnn").recipe.export.backend == "qnn"
    assert load_recipe("qnn.yaml").path == tmp_path / "qnn.yaml"
    Path("extending.yaml").write_text("extends: xnnpack.yaml\n")
    assert load_recipe("extending.yaml").recipe.export == load_recipe("xnnpack").recipe.export
    for name in ("./xnnpack.yaml", "recipes/xnnpack.yaml", "xnnpack.ymal"):
        with pytest.raises(RecipeError, match="did you mean 'xnnpack'"):
            load_recipe(name)
