"""Recipes of language models: ids and folders, and the keys that belong to them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from etdeploy.core.errors import RecipeError
from etdeploy.export.derive import export_spec
from etdeploy.export.spec import CALIBRATION_TEXT
from etdeploy.recipe.load import load_recipe
from etdeploy.recipe.paths import relative_paths
from etdeploy.recipe.sections.export import ExportGeneration
from tests.support.facts import lacks

HF = "model: {hf: org/model}\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(text: str, name: str = "r.yaml") -> str:
    Path(name).write_text(text)
    return name


def test_a_small_context_is_taken_at_once() -> None:
    assert ExportGeneration(context=64).prefill_tokens == 64
    assert ExportGeneration(context=256).prefill_tokens == 128


def test_a_folder_comes_before_an_id(folder: Path) -> None:
    (folder / "org" / "model").mkdir(parents=True)
    assert load_recipe(write(HF)).recipe.model.hf == f"{folder}/org/model"
    (folder / "recipes").mkdir()
    other = write(HF, "recipes/other.yaml")
    assert load_recipe(other).recipe.model.hf == "org/model"
    assert load_recipe(other, ["--model=org/model"]).recipe.model.hf == f"{folder}/org/model"


def test_the_draft_is_a_program_or_the_folder_of_one(folder: Path) -> None:
    (folder / "small").mkdir()
    program = folder / "small" / "program.pte"
    program.write_bytes(b"")
    (folder / "recipes").mkdir()
    grid = "benchmark: {{generation: {{speculation: {}}}}}\n"
    found = [
        load_recipe(write(HF + grid.format("model:../small"), "recipes/r.yaml")),
        load_recipe(write(HF + grid.format("model:small/program.pte"))),
        load_recipe(write(HF), ["--speculate=model:./small/"]),
    ]
    for loaded in found:
        grid_of = loaded.recipe.benchmark.generation
        assert grid_of is not None
        assert grid_of.speculation == f"model:{program}"
        assert grid_of.draft == str(program)
    content = relative_paths(found[0].recipe.model_dump(mode="json"), folder / "recipes")
    assert content["benchmark"]["generation"]["speculation"] == "model:../small/program.pte"
    plain = load_recipe(write(HF), ["--speculate=lookup"]).recipe.benchmark.generation
    assert plain is not None
    assert plain.draft is None


@pytest.mark.parametrize(
    ("named", "says", "model"),
    [
        ("model", "the folder {folder}/model has no program.pte", "{folder}/model"),
        ("absent.pte", "the file {folder}/absent.pte does not exist", "MODEL"),
        ("org/small", "'org/small' is neither a program (.pte) nor a folder with one", "org/small"),
        ("none", "'none' is neither a program", "MODEL"),
    ],
)
def test_a_draft_that_is_no_program_is_exported_before(
    folder: Path, named: str, says: str, model: str
) -> None:
    (folder / "model").mkdir()
    with pytest.raises(RecipeError) as raised:
        load_recipe(write(HF), [f"--speculate=model:{named}"])
    [problem] = raised.value.problems
    assert problem.place == "--speculate"
    assert says.format(folder=folder) in problem.message
    command = f"etdeploy export --recipe llm-xnnpack --model {model} --output draft"
    assert command.format(folder=folder) in str(problem.hint)


@pytest.mark.parametrize("value", ["model:", "lookups", "draft", "model"])
def test_speculation_is_none_lookup_or_a_model(value: str) -> None:
    with pytest.raises(RecipeError, match="speculation takes none, lookup, or model:DRAFT"):
        load_recipe(write(HF), [f"--speculate={value}"])


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


def test_with_quantized_layers_there_is_a_text_to_evaluate() -> None:
    text = HF + "export: {quantization: 8da4w, generation: {evaluate_tokens: 64}}\n"
    assert load_recipe(write(text)).recipe.export.generation


def test_a_calibration_text_is_named_from_the_recipes_folder(folder: Path) -> None:
    text = HF + "export: {quantization: 8da4w, calibration: text.txt}\n"
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


def test_a_calibration_has_a_text_and_prompts(folder: Path) -> None:
    (folder / "text.txt").write_text("some words")

    def read(mapping: str) -> tuple[str | None, Any]:
        text = HF + f"export: {{quantization: 8da4w, calibration: {mapping}}}\n"
        recipe = load_recipe(write(text)).recipe
        named = relative_paths(recipe.model_dump(mode="json"), folder)["export"]["calibration"]
        assert named["text"] in (None, "text.txt")
        spec = export_spec(recipe, arch="x86_64")
        return spec.calibration_text, spec.calibration_prompts

    own = str(folder / "text.txt")
    assert read("{text: text.txt}") == (own, None)
    assert read("{text: text.txt, prompts: 3}") == (own, 3)
    assert read("{prompts: 3}") == (CALIBRATION_TEXT, 3)
    assert read("{prompts: [one, two]}") == (None, ("one", "two"))
    assert read("{text: text.txt, prompts: [one]}") == (own, ("one",))


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


def test_adapters_are_folders_or_ids(folder: Path) -> None:
    (folder / "poems").mkdir()
    text = "model: {{hf: org/model, lora: {}}}\n"
    one = load_recipe(write(text.format("./poems"))).recipe
    assert one.model.lora == f"{folder}/poems"
    named = load_recipe(write(text.format("{a: poems, b-2: org/code}"))).recipe
    assert named.model.lora == {"a": f"{folder}/poems", "b-2": "org/code"}
    spec = export_spec(named)
    assert [(each.folder, each.id) for each in spec.lora] == [
        (f"{folder}/poems", None),
        (None, "org/code"),
    ]
    content = relative_paths(named.model_dump(), folder / "recipes")
    assert content["model"]["lora"] == {"a": "../poems", "b-2": "org/code"}


@pytest.mark.parametrize(
    ("model", "place", "facts"),
    [
        ("{hf: org/model, lora: ./none}", "r.yaml:1:24", ("model.lora", "/none does not exist")),
        ("{hf: org/model, lora: {a: ./none}}", "r.yaml:1:31", ("model.lora.a", "/none")),
        ("{hf: org/model, lora: {a b: org/x}}", "r.yaml:1:24", ("model.lora takes", "mapping")),
        ("{hf: org/model, lora: {}}", "r.yaml:1:24", ("model.lora takes", "mapping")),
        ("{hf: org/model, lora: 5}", "r.yaml:1:24", ("model.lora takes", "5")),
        ("{python: 'm:f', lora: org/x}", "r.yaml:1:24", ("model.lora", "`hf`")),
        ("{example: mlp, lora: org/x}", "r.yaml:1:23", ("model.lora", "`hf`")),
    ],
)
def test_mistakes_about_adapters(folder: Path, model: str, place: str, facts: tuple[str]) -> None:
    with pytest.raises(RecipeError) as caught:
        load_recipe(write(f"model: {model}\n"))
    [problem] = caught.value.problems
    assert problem.place.endswith(place)
    assert not lacks(problem.message, *facts)


@pytest.mark.parametrize(("lora", "key"), [("a.gguf", "lora"), ("{x: a.gguf}", "lora.x")])
def test_an_adapter_of_llama_cpp_is_not_one_of_peft(folder: Path, lora: str, key: str) -> None:
    (folder / "a.gguf").touch()
    with pytest.raises(RecipeError) as caught:
        load_recipe(write(f"model: {{gguf: a.gguf, lora: {lora}}}\n"))
    [problem] = caught.value.problems
    assert not lacks(problem.message, f"model.{key}: a.gguf is a file in GGUF")
    assert problem.hint == "name the folder that the save_pretrained of a peft model wrote"


def test_an_adapter_is_chosen_by_its_name(folder: Path) -> None:
    for name in ("a", "no"):
        (folder / name).mkdir()
    name = write("model: {hf: org/model, lora: {a: ./a, 'no': ./no}, merge: false}\n")
    spec = export_spec(load_recipe(name).recipe)
    assert spec.lora == ()
    assert {n: each.folder for n, each in spec.adapters.items()} == {
        "a": f"{folder}/a",
        "no": f"{folder}/no",
    }
    generation = load_recipe(name, ["--lora=no"]).recipe.benchmark.generation
    assert generation is not None
    assert generation.lora == "no"  # YAML would read false


@pytest.mark.parametrize(
    ("model", "overrides", "place", "facts"),
    [
        ("lora: {a: ./a}, merge: false", ["--lora=b"], "--lora", ("'b'", "has a")),
        ("lora: {a: ./a}", ["--lora=a"], "--lora", ("merged", "model.merge: false")),
        ("lora: ./a", ["--lora=a"], "--lora", ("merged", "model.merge: false")),
        ("revision: main", ["--lora=a"], "--lora", ("no adapter 'a'", "model.merge: false")),
        ("lora: ./a, merge: false", [], "r.yaml:1:35", ("model.merge", "{NAME: FOLDER}")),
        ("merge: false", [], "r.yaml:1:24", ("model.merge", "{NAME: FOLDER}")),
    ],
)
def test_mistakes_about_the_chosen_adapter(
    folder: Path, model: str, overrides: list[str], place: str, facts: tuple[str, ...]
) -> None:
    (folder / "a").mkdir()
    with pytest.raises(RecipeError) as caught:
        load_recipe(write(f"model: {{hf: org/model, {model}}}\n"), overrides)
    [problem] = caught.value.problems
    assert problem.place.endswith(place)
    assert not lacks(problem.message, *facts)


@pytest.mark.parametrize(
    ("named", "program", "revision"),
    [
        ("org/model", "org/model", None),
        ("org/model/a/b.pte", "org/model/a/b.pte", None),
        ("https://huggingface.co/org/model/blob/v1/b.pte", "org/model/b.pte", "v1"),
        ("https://huggingface.co/org/model", "org/model", None),
    ],
)
def test_a_program_of_the_hub(named: str, program: str, revision: str | None) -> None:
    model = load_recipe(write(f"model: {{program: '{named}'}}\n")).recipe.model
    assert (model.program, model.revision) == (program, revision)


@pytest.mark.parametrize("named", ["model.pte", "folder/model.pte", "./org/model/b.pte"])
def test_a_program_that_is_missing_here(named: str) -> None:
    with pytest.raises(RecipeError, match="does not exist"):
        load_recipe(write(f"model: {{program: {named}}}\n"))


def test_a_file_comes_before_a_program_of_the_hub(folder: Path) -> None:
    (folder / "org/model").mkdir(parents=True)
    (folder / "org/model/b.pte").touch()
    text = "model: {program: org/model/b.pte}\n"
    assert load_recipe(write(text)).recipe.model.program == f"{folder}/org/model/b.pte"


@pytest.mark.parametrize(
    ("named", "key"), [("m.pte", "program"), ("m.pth", "checkpoint"), ("m.gguf", "gguf")]
)
def test_the_suffix_says_what_the_command_line_names(folder: Path, named: str, key: str) -> None:
    (folder / named).touch()
    model = load_recipe("xnnpack", [f"--model={named}"]).recipe.model
    assert getattr(model, key) == f"{folder}/{named}"


def test_a_finished_program_replaces_how_a_language_model_is_exported(folder: Path) -> None:
    (folder / "m.pte").touch()
    shared = "export: {generation: {context: 64}, calibration: none, quantization: 8da4w}\n"
    recipe = load_recipe(write("model: {hf: org/model}\n" + shared), ["--model=m.pte"]).recipe
    assert recipe.export.generation is None
    assert recipe.export.calibration is None
    with pytest.raises(RecipeError, match=r"export\.generation"):
        load_recipe(write("model: {program: m.pte}\n" + shared))


def test_a_calibrated_scheme_without_the_path_that_calibrates_names_the_path() -> None:
    text = HF + "export: {backend: qnn, quantization: 16a8w, generation: {path: %s}}\n"
    assert load_recipe(write(text % "static")).recipe.export.quantization == "16a8w"
    with pytest.raises(RecipeError) as told:
        load_recipe(write(text % "fast"))
    assert not lacks(
        told.value, "r.yaml:2:", "'16a8w'", "the path fast", "path at auto", "from none, fp16"
    )
