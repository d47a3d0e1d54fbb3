"""Recipes of language models: ids and folders, and the keys that belong to them."""

from __future__ import annotations

from pathlib import Path

import pytest

from etdeploy.core.errors import RecipeError
from etdeploy.recipe.load import load_recipe
from etdeploy.recipe.model import BenchmarkGeneration, ExportGeneration, Recipe
from etdeploy.recipe.paths import relative_paths

HF = "model: {hf: org/model}\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(text: str, name: str = "r.yaml") -> str:
    Path(name).write_text(text)
    return name


def problems(text: str, *overrides: str) -> list[str]:
    with pytest.raises(RecipeError) as caught:
        load_recipe(write(text), overrides)
    return [str(problem) for problem in caught.value.problems]


def test_an_id_has_the_defaults_of_its_sections() -> None:
    recipe = load_recipe(write(HF)).recipe
    assert (recipe.model.hf, recipe.model.task) == ("org/model", "text-generation")
    assert recipe.export.generation == ExportGeneration()
    assert recipe.benchmark.generation == BenchmarkGeneration()
    again = load_recipe(write(HF + "export: {generation: {context: 64, prefill_tokens: 8}}\n"))
    assert again.recipe.export.generation == ExportGeneration(context=64, prefill_tokens=8)


def test_a_small_context_is_taken_at_once() -> None:
    assert ExportGeneration(context=64).prefill_tokens == 64
    assert ExportGeneration(context=256).prefill_tokens == 128


def test_another_model_has_no_keys_of_text() -> None:
    recipe = Recipe.model_validate({"model": {"example": "mlp"}})
    assert (recipe.model.task, recipe.export.generation, recipe.benchmark.generation) == (None,) * 3


def test_a_folder_comes_before_an_id(folder: Path) -> None:
    (folder / "org" / "model").mkdir(parents=True)
    assert load_recipe(write(HF)).recipe.model.hf == f"{folder}/org/model"
    (folder / "recipes").mkdir()
    other = write(HF, "recipes/other.yaml")
    assert load_recipe(other).recipe.model.hf == "org/model"
    assert load_recipe(other, ["--model=org/model"]).recipe.model.hf == f"{folder}/org/model"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("./gone", "the folder {here}/gone does not exist"),
        ("gone/", "the folder {here}/gone does not exist"),
        ("a/b/c", "the folder {here}/a/b/c does not exist"),
        ("r.yaml", "the folder {here}/r.yaml is a file"),
        ("two words", "'two words' is neither a folder nor an id on the Hugging Face hub (an id is "
         "like HuggingFaceTB/SmolLM2-135M)"),
        ("org/mo:del", "'org/mo:del' is neither a folder nor an id on the Hugging Face hub (an id "
         "is like HuggingFaceTB/SmolLM2-135M)"),
    ],
)  # fmt: skip
def test_what_is_neither_a_folder_nor_an_id(folder: Path, name: str, expected: str) -> None:
    text = f"model.hf: {expected.format(here=folder)}"
    assert problems(HF, f"--model={name}") == [f"--model: {text}"]
    assert problems(f"model:\n  hf: {name!r}\n") == [f"r.yaml:2:3: {text}"]


def test_a_model_of_the_command_line_replaces_the_recipes_whole_model() -> None:
    name = write("model: {hf: org/model, revision: abc, remote_code: org/model}\n")
    model = load_recipe(name, ["--model=7: {x}"[:9]]).recipe.model
    assert (model.hf, model.revision, model.remote_code) == ("7", None, None)
    model = load_recipe(name, ["model.revision=v1", "--model=org/other"]).recipe.model
    assert (model.hf, model.revision, model.remote_code) == ("org/other", "v1", None)
    model = load_recipe("xnnpack", ["--model=org/other"]).recipe.model
    assert (model.hf, model.example) == ("org/other", None)


def test_code_may_run_only_for_the_model_that_it_names(folder: Path) -> None:
    (folder / "mine").mkdir()
    text = "model: {hf: mine, remote_code: ./mine}\n"
    assert load_recipe(write(text)).recipe.model.remote_code == f"{folder}/mine"
    assert problems(HF, "model.remote_code=org/other") == [
        "--set model.remote_code: model.remote_code: code runs only for the model that is named "
        "here, 'org/other', and `hf` is 'org/model'"
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("model: {example: mlp, revision: v1}",
         "1:23: model.revision: this key is about a model of `hf`, and none is named"),
        ("model: {hf: .., revision: v1}",
         "1:17: model.revision: a folder has no revisions, and {up} is one"),
        ("model: {hf: ''}", "1:9: model.hf should have at least 1 character, not ''"),
        ("model: {hf: a/b, task: translation}",
         "1:18: model.task takes text-generation, not 'translation'"),
        ("model: {hf: a/b, weights: r.yaml}", "1:18: model.weights: weights need a `python` model "
         "source"),
        ("model: {hf: a/b}\nexport: {generation: {context: 64, prefill_tokens: 65}}",
         "2:36: export.generation.prefill_tokens: 65 tokens at once do not fit into a context of "
         "64; set export.generation.prefill_tokens to 64 or less"),
        ("model: {hf: a/b}\nexport: {backend: openvino, generation: {attention: kernel}}",
         "2:42: export.generation.attention: etdeploy's kernel runs on the CPU, and openvino "
         "computes elsewhere; it applies to the backends portable, xnnpack only"),
        ("model: {hf: a/b}\nexport: {generation: {attention: kernel, path: plain}}",
         "2:23: export.generation.attention: the path plain has transformers' attention; leave "
         "export.generation.path at auto"),
        ("model: {hf: a/b}\nexport: {quantization: int8_static}",
         "2:10: export.quantization: 'int8_static' needs calibration inputs, and a model of `hf` "
         "takes none; choose from none, int8_dynamic, 8da4w, 8da8w"),
        ("model: {hf: a/b}\nexport: {backend: qnn, quantization: 16a4w}",
         "2:24: export.quantization: '16a4w' needs calibration inputs, and a model of `hf` takes "
         "none; choose from none, fp16"),
        ("model: {hf: a/b}\nexport: {generation: {batch: 2}}",
         "2:23: unknown key 'export.generation.batch' (text is generated for one sequence at a "
         "time)"),
        ("model: {hf: a/b}\nexport: {generation: 7}",
         "2:10: export.generation takes a mapping of keys, not 7"),
        ("model: {hf: a/b}\nbenchmark: {generation: {prompt_tokens: 128}}",
         "2:26: benchmark.generation.prompt_tokens takes a list of different whole numbers from 1 "
         "to 1048576, not 128"),
        ("model: {hf: a/b}\nbenchmark: {generation: {new_tokens: [64, 64]}}",
         "2:26: benchmark.generation.new_tokens takes a list of different whole numbers from 1 "
         "to 1048576, not [64, 64]"),
        ("model: {hf: a/b}\nbenchmark: {generation: {top_k: 40}}",
         "2:26: benchmark.generation.top_k: nothing is drawn with temperature 0; also set "
         "benchmark.generation.temperature"),
        ("model: {hf: a/b}\nbenchmark: {sizes: {short: {tokens: 4}}}",
         "2:13: benchmark.sizes: a model of `hf` is measured by `benchmark.generation`"),
        ("model: {example: mlp}\nbenchmark: {generation: {}}",
         "2:13: benchmark.generation: this section is for a model of `hf`, and this one is of "
         "`example`"),
        ("model: {example: mlp}\nexport: {generation: {context: 64, prefill_tokens: 8}}",
         "2:10: export.generation: this section is for a model of `hf`, and this one is of "
         "`example`"),
    ],
)  # fmt: skip
def test_one_problem(folder: Path, text: str, expected: str) -> None:
    assert problems(text) == [f"r.yaml:{expected.format(up=folder.parent)}"]


def test_the_folder_of_a_record_is_relative(tmp_path: Path) -> None:
    content = {"model": {"hf": f"{tmp_path}/a/model", "remote_code": f"{tmp_path}/a/model"}}
    told = relative_paths(content, tmp_path / "recipes")
    assert told == {"model": {"hf": "../a/model", "remote_code": "../a/model"}}
    assert relative_paths({"model": {"hf": "org/model"}}, tmp_path) == {
        "model": {"hf": "org/model"}
    }


def test_a_text_to_evaluate_is_named_from_the_recipes_folder(folder: Path) -> None:
    (folder / "below").mkdir()
    (folder / "below" / "text.txt").write_text("some words")
    text = HF + "export: {generation: {evaluate: text.txt, evaluate_tokens: 64}}\n"
    recipe = load_recipe(write(text, "below/r.yaml")).recipe
    assert recipe.export.generation
    assert recipe.export.generation.evaluate == str(folder / "below" / "text.txt")
    told = recipe.model_dump(mode="json")
    found = relative_paths(told, folder)
    assert found["export"]["generation"]["evaluate"] == "below/text.txt"
    # What was given stays as it is.
    assert told["export"]["generation"]["evaluate"] == str(folder / "below" / "text.txt")


def test_a_text_to_evaluate_that_is_not_there(folder: Path) -> None:
    text = HF + "export:\n  generation: {evaluate: text.txt}\n"
    assert problems(text) == [
        f"r.yaml:3:16: export.generation.evaluate: the file {folder / 'text.txt'} does not exist"
    ]
    (folder / "text.txt").mkdir()
    assert problems(text) == [
        f"r.yaml:3:16: export.generation.evaluate: the file {folder / 'text.txt'} is a folder"
    ]


def test_tokens_to_evaluate_need_a_text() -> None:
    text = HF + "export: {generation: {evaluate_tokens: 64}}\n"
    [problem] = problems(text)
    assert problem.endswith("also set export.generation.evaluate")


def test_with_quantised_layers_there_is_a_text_to_evaluate() -> None:
    text = HF + "export: {quantization: 8da4w, generation: {evaluate_tokens: 64}}\n"
    assert load_recipe(write(text)).recipe.export.generation
    [problem] = problems(text.replace("64", "64, evaluate: none"))
    assert "export.generation.evaluate_tokens" in problem


def test_a_calibration_text_is_named_from_the_recipes_folder(folder: Path) -> None:
    text = HF + "export: {quantization: 8da4w, calibration: text.txt}\n"
    assert problems(text) == [
        f"r.yaml:2:31: export.calibration: the file {folder / 'text.txt'} does not exist"
    ]
    (folder / "text.txt").write_text("some words")
    recipe = load_recipe(write(text)).recipe
    assert recipe.export.calibration == str(folder / "text.txt")
    assert relative_paths(recipe.model_dump(mode="json"), folder)["export"]["calibration"] == (
        "text.txt"
    )
    settings = ["export.calibration=none", "export.generation.evaluate=none"]
    none = load_recipe(write(text), settings).recipe.export
    assert none.generation
    assert (none.calibration, none.generation.evaluate) == ("none", "none")


@pytest.mark.parametrize(
    "text",
    [
        "model: {hf: a/b}\nexport: {quantization: 8da8w, calibration: none}",
        "model: {hf: a/b}\nexport: {calibration: none}",
        "model: {example: mlp}\nexport: {quantization: 8da4w, calibration: 'a.b:f'}",
    ],
)
def test_calibration_that_nothing_uses(text: str) -> None:
    [problem] = problems(text)
    assert ": export.calibration: " in problem


def test_a_model_of_the_command_line_is_told_from_the_recipes_own() -> None:
    name = write(HF)
    assert load_recipe(name).named_model == ""
    assert load_recipe(name, ["--model=other/model"]).named_model == "other/model"
    assert load_recipe(name, ["model.hf=other/model"]).named_model == ""


@pytest.mark.parametrize("scheme", ["fp16", "8a4w"])
def test_overrides_that_would_need_calibration(folder: Path, scheme: str) -> None:
    export = f"{{backend: qnn, quantization: {scheme}, overrides: {{lm_head: 16a4w}}}}"
    assert problems(f"model: {{hf: a/b}}\nexport: {export}")[-1].endswith(
        "export.overrides: the overrides of qnn need calibration inputs, and a model of `hf` takes "
        "none; for such a model, overrides apply to xnnpack only"
    )


@pytest.mark.parametrize(
    ("address", "model", "revision"),
    [
        ("https://huggingface.co/org/model", "org/model", None),
        ("https://huggingface.co/org/model-1.5/", "org/model-1.5", None),
        ("huggingface.co/org/model?library=transformers", "org/model", None),
        ("https://hf.co/org/model/tree/v1.0", "org/model", "v1.0"),
    ],
)
def test_the_address_of_a_models_page_is_its_id(
    address: str, model: str, revision: str | None
) -> None:
    for recipe in (
        load_recipe("llm-xnnpack", [f"--model={address}"]).recipe,
        load_recipe(write(f"model: {{hf: '{address}'}}\n")).recipe,
    ):
        assert (recipe.model.hf, recipe.model.revision) == (model, revision)


@pytest.mark.parametrize("address", ["https://huggingface.co/datasets/a/b", "https://x.org/a/b"])
def test_another_address_is_not_a_model(address: str) -> None:
    [problem] = problems(HF, f"--model={address}")
    assert address in problem
    assert "nor an id" in problem


def test_a_misspelt_key_of_another_section_is_found() -> None:
    generation = "export: {generation: {itterations: 3, contxt: 64}}\n"
    text = f"{HF}{generation}quantisation: 8da4w\n"
    assert [p.partition("(")[2] for p in problems(text, "benchmark.threads=3")] == [
        "did you mean 'runtime.threads'?)",
        "did you mean 'benchmark.iterations'?)",
        "did you mean 'context'?)",
        "did you mean 'export.quantization'?)",
    ]


def test_a_wrong_item_of_a_list_is_reported_at_its_place() -> None:
    text = HF + "benchmark:\n  generation:\n    prompt_tokens:\n      - 8\n      - x\n"
    [problem] = problems(text)
    assert problem.startswith("r.yaml:6:9: ")
    assert "'x'" in problem
