"""Recipes: what is read, merged and overridden, and the exact text for what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from etdeploy.core.errors import RecipeError
from etdeploy.recipe.load import bundled_recipes, load_recipe
from etdeploy.recipe.model import Recipe
from etdeploy.recipe.paths import relative_paths
from etdeploy.recipe.reference import reference, schema

ROOT = Path(__file__).resolve().parents[3]
SMALLEST = "model: {example: mlp}\nexport: {backend: xnnpack}\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(name: str, text: str) -> str:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return name


def problems(name: str, *overrides: str) -> list[str]:
    with pytest.raises(RecipeError) as caught:
        load_recipe(name, overrides)
    assert caught.value.exit_code == 2
    return [str(problem) for problem in caught.value.problems]


@pytest.mark.parametrize("name", ["coreml", "portable", "qnn", "vulkan", "xnnpack"])
def test_bundled_recipes_load_by_name(name: str) -> None:
    assert name in bundled_recipes()
    loaded = load_recipe(name)
    assert loaded.name == loaded.recipe.export.backend == name
    assert loaded.recipe.description


def test_the_bundled_recipe_of_a_language_model() -> None:
    loaded = load_recipe("llm-xnnpack")
    assert (loaded.recipe.export.backend, loaded.recipe.export.quantization) == ("xnnpack", "8da4w")
    assert loaded.recipe.model.hf == "HuggingFaceTB/SmolLM2-135M"
    assert loaded.recipe.description


def test_the_smallest_recipe_has_defaults_for_the_rest() -> None:
    loaded = load_recipe(write("small.yaml", SMALLEST))
    assert loaded.name == "small"
    assert loaded.recipe == Recipe.model_validate(
        {"model": {"example": "mlp"}, "export": {"backend": "xnnpack"}}
    )
    assert [path.name for path, _ in loaded.files] == ["small.yaml"]


def test_a_file_of_the_same_name_is_taken_only_with_its_suffix() -> None:
    write("xnnpack.yaml", SMALLEST)
    assert load_recipe("xnnpack").recipe.model.example == "convnet"
    assert load_recipe("xnnpack.yaml").recipe.model.example == "mlp"


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


def test_every_problem_is_told_at_its_place() -> None:
    bad = write(
        "bad.yaml",
        """\
model:
  exmaple: mlp
  program: nothing.pte
  program: again.pte
export:
  backend: xnpack
  quantisation: int8
benchmark:
  iterations: many
  warmup: 3.5
  profile: "yes"
  tolerance: 7
""",
    )
    assert problems(bad, "benchmark.itrations=4", "foo", "x.y=[", "runtime.threads=-1") == [
        "bad.yaml:4:3: duplicate key 'program' (first defined at bad.yaml:3:3)",
        "--set foo: write it as key.path=value (e.g. --set benchmark.iterations=100)",
        "--set x.y: this is not YAML: did not find expected node content "
        "(while parsing a flow node)",
        "--set benchmark.itrations: unknown key 'benchmark.itrations' (did you mean 'iterations'?)",
        "--set runtime.threads: runtime.threads takes a whole number from 0 to 256, auto, or a "
        "list of different numbers from 1 to 256, not -1",
        "bad.yaml:2:3: unknown key 'model.exmaple' (did you mean 'example'?)",
        "bad.yaml:6:3: export.backend takes portable, xnnpack, qnn, vulkan, coreml or openvino, "
        "not 'xnpack' (did you mean 'xnnpack'?)",
        "bad.yaml:7:3: unknown key 'export.quantisation' (did you mean 'quantization'?)",
        "bad.yaml:9:3: benchmark.iterations takes a whole number, not 'many'",
        "bad.yaml:10:3: benchmark.warmup takes a whole number from 0 to 100000, or auto, not 3.5",
        "bad.yaml:11:3: benchmark.profile takes true or false, not 'yes'",
        "bad.yaml:12:3: benchmark.tolerance takes a mapping of keys, not 7",
        f"bad.yaml:3:3: model.program: the file {Path.cwd()}/nothing.pte does not exist",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "r.yaml:1:1: the file is empty"),
        ("- a\n", "r.yaml:1:1: a recipe is a mapping with the key `model`"),
        ("{}", "r.yaml:1:1: the key 'model' is missing (e.g. model: {example: mlp})"),
        ("model: {}", "r.yaml:1:1: model: name one model source: example, python, exported, "
                      "program or hf"),
        ("model: {example: mlp, program: r.yaml}",
         "r.yaml:1:1: model: name one model source: example, python, exported, program or hf; "
         "2 are given: example, program"),
        ("model: {example: mlp}\nexport:\n  backend: portable\n  quantization: 8da4w\n",
         "r.yaml:4:3: export.quantization: the backend portable does not support "
         "quantization '8da4w'; choose from none"),
        ("model: {example: mlp}\nexport: {soc: SM8650}\n",
         "r.yaml:2:10: export.soc: soc applies to the qnn backend only"),
        ("model: {python: nothing}\n",
         "r.yaml:1:9: model.python: 'nothing' does not name a function "
         "(write file.py:function or package.module:function)"),
        ("model: {example: !!python/object:os.system x}\n",
         "r.yaml:1:18: python/object:os.system values are not supported"),
        ("name: ../up\nmodel: {example: mlp}\n",
         "r.yaml:1:1: name '../up' cannot name a folder "
         "(use letters, digits, dot, dash and underscore)"),
        ("extends: [a]\n", "r.yaml:1:1: extends takes the name or path of one recipe"),
        ("extends: gone.yaml\n", "r.yaml:1:1: there is no such recipe: 'gone.yaml' "
         "(did you mean 'r.yaml'?)"),
        ("extends: r.yaml\n",
         "r.yaml:1:1: recipes extend each other in a circle: r.yaml -> r.yaml"),
    ],
)  # fmt: skip
def test_one_problem(text: str, expected: str) -> None:
    assert problems(write("r.yaml", text))[0] == expected


def test_broken_yaml_is_told_with_line_and_column() -> None:
    assert problems(write("r.yaml", "model:\n\texample: mlp\n")) == [
        "r.yaml:2:1: this is not YAML: a tab indents here (use spaces)"
    ]


def test_what_is_no_file() -> None:
    write("some/my.yaml", SMALLEST)
    assert problems("some") == ["some: a recipe is a YAML file, and this is a folder"]
    assert problems("xnpack") == ["xnpack: there is no such recipe (did you mean 'xnnpack'?)"]
    assert problems("some/mine.yaml") == [
        "some/mine.yaml: there is no such recipe (did you mean 'some/my.yaml'?)"
    ]
    Path("latin.yaml").write_bytes(b"name: caf\xe9\n")
    assert problems("latin.yaml") == ["latin.yaml: the file is not UTF-8 text (byte 9)"]


def test_a_bomb_of_aliases_is_refused() -> None:
    lines = ["a: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"b{i}: &a{i + 1} [{', '.join([f'*a{i}'] * 10)}]" for i in range(8)]
    assert problems(write("bomb.yaml", "\n".join(lines))) == [
        "bomb.yaml: the file contains too many values"
    ]


def test_recipes_are_frozen() -> None:
    recipe = load_recipe("xnnpack").recipe
    with pytest.raises(ValueError, match="frozen"):
        recipe.benchmark.iterations = 3  # type: ignore[misc]


def test_the_schema_describes_every_key_and_is_json() -> None:
    content = json.loads(json.dumps(schema()))
    assert content["$schema"].endswith("2020-12/schema")
    assert content["additionalProperties"] is False
    for section in [content, *content["$defs"].values()]:
        for name, field in section["properties"].items():
            described = field.get("description") or "$ref" in field
            assert described, f"{name} has no description"


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
