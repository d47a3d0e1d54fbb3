"""The task of a model of transformers, from its configuration, and what a recipe makes of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest

from etdeploy.core.errors import RecipeError
from etdeploy.export.derive import export_spec
from etdeploy.export.spec import TaskInput
from etdeploy.recipe.load import default_recipe, load_recipe
from etdeploy.recipe.paths import hub_model
from etdeploy.recipe.sections.model import Task
from etdeploy.recipe.tasks import TASKS, task_of
from tests.support.facts import lacks

COMMIT = "0123456789012345678901234567890123456789"
WHISPER = {
    "architectures": ["WhisperForConditionalGeneration"],
    "is_encoder_decoder": True,
    "num_mel_bins": 80,
}


def model_folder(tmp_path: Path, config: dict[str, Any]) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_a_recipe_can_name_every_task() -> None:
    assert set(get_args(Task)) == set(TASKS)


@pytest.mark.parametrize(
    ("config", "task"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, "text-generation"),
        ({"architectures": ["GPT2LMHeadModel"]}, "text-generation"),
        ({"architectures": ["BertModel"]}, "feature-extraction"),
        ({"architectures": ["BertForMaskedLM"]}, "fill-mask"),
        ({"architectures": ["BertForSequenceClassification"]}, "text-classification"),
        (
            {"architectures": ["Wav2Vec2ForSequenceClassification"], "feat_extract_norm": "group"},
            "audio-classification",
        ),
        ({"architectures": ["DebertaV2ForTokenClassification"]}, "token-classification"),
        ({"architectures": ["ViTForImageClassification"]}, "image-classification"),
        ({"architectures": ["DetrForObjectDetection"]}, "object-detection"),
        ({"architectures": ["SegformerForSemanticSegmentation"]}, "semantic-segmentation"),
        ({"architectures": ["DPTForDepthEstimation"]}, "depth-estimation"),
        ({"architectures": ["Wav2Vec2ForCTC"]}, "automatic-speech-recognition"),
        (WHISPER, "automatic-speech-recognition"),
        (
            {"architectures": ["T5ForConditionalGeneration"], "is_encoder_decoder": True},
            "text2text-generation",
        ),
        ({"architectures": ["MarianMTModel"], "is_encoder_decoder": True}, "text2text-generation"),
        (
            {"architectures": ["LlavaForConditionalGeneration"], "vision_config": {}},
            "image-text-to-text",
        ),
        ({"architectures": ["VitsModel"]}, "text-to-speech"),
        ({"architectures": ["SpeechT5ForTextToSpeech"]}, "text-to-speech"),
        ({"architectures": ["SomethingElse"]}, None),
        ({"architectures": "BertModel"}, None),
        ({}, None),
    ],
)
def test_the_task_of_a_configuration(config: dict[str, Any], task: str | None) -> None:
    assert task_of(config) == task


def test_a_folder_has_the_task_of_its_configuration(tmp_path: Path) -> None:
    folder = model_folder(tmp_path, {"architectures": ["BertForMaskedLM"]})
    recipe = load_recipe("xnnpack", [f"--model={folder}", "--text=5: [MASK]"]).recipe
    assert (recipe.model.task, recipe.is_language_model) == ("fill-mask", False)
    spec = export_spec(recipe)
    assert (spec.task, spec.generation) == ("fill-mask", None)
    assert spec.input == TaskInput(text="5: [MASK]")


def test_a_model_in_the_hubs_cache_has_that_of_its_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    cached = tmp_path / "models--org--bert"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs/main").write_text(COMMIT)
    (cached / "snapshots" / COMMIT).mkdir(parents=True)
    config = {"architectures": ["BertModel"]}
    (cached / "snapshots" / COMMIT / "config.json").write_text(json.dumps(config))
    assert load_recipe("xnnpack", ["--model=org/bert"]).recipe.model.task == "feature-extraction"
    assert load_recipe("xnnpack", ["--model=org/other"]).recipe.model.task == "text-generation"
    assert (default_recipe("org/bert"), default_recipe("org/other")) == ("xnnpack", "llm-xnnpack")


@pytest.mark.parametrize(
    ("config", "generates"),
    [(WHISPER, True), ({"architectures": ["Wav2Vec2ForCTC"]}, False)],
)
def test_speech_recognition_generates_unless_by_ctc(
    tmp_path: Path, config: dict[str, Any], *, generates: bool
) -> None:
    folder = model_folder(tmp_path, config)
    recipe = load_recipe("xnnpack", [f"--model={folder}"]).recipe
    assert recipe.is_language_model == generates
    assert default_recipe(str(folder)) == ("llm-xnnpack" if generates else "xnnpack")
    assert (export_spec(recipe).generation is not None) == generates
    again = type(recipe).model_validate(recipe.model_dump(exclude_none=True))
    assert again.is_language_model == generates


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("org/model", ("org/model", "main")),
        ("https://huggingface.co/org/model/tree/v2", ("org/model", "v2")),
        ("hf-hub:org/model@v2", ("org/model", "v2")),
        ("gpt2", ("gpt2", "main")),
        ("missing.gguf", None),
        ("models/missing.gguf", None),
        ("./model", None),
    ],
)
def test_only_an_id_or_an_address_is_a_model_of_the_hub(
    name: str, model: tuple[str, str] | None
) -> None:
    assert hub_model(name) == model


def test_a_file_or_folder_is_no_model_of_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gpt2").mkdir()
    assert hub_model("gpt2") is None


def test_the_default_recipe_follows_the_model(tmp_path: Path) -> None:
    folder = model_folder(tmp_path, {"architectures": ["ViTForImageClassification"]})
    assert default_recipe(str(folder)) == "xnnpack"
    assert default_recipe(None) == "xnnpack"
    assert default_recipe(None, "llm-xnnpack") == "llm-xnnpack"
    assert default_recipe("org/name/model.gguf") == "llm-xnnpack"
    assert default_recipe("model.pte", "portable") == "portable"


def test_a_model_that_generates_no_text_is_calibrated_by_a_function(tmp_path: Path) -> None:
    folder = model_folder(tmp_path, {"architectures": ["ViTForImageClassification"]})
    (tmp_path / "samples.py").touch()
    (tmp_path / "r.yaml").write_text(
        f"model: {{hf: {folder.name}}}\n"
        "export: {quantization: int8_static, calibration: samples.py:make}\n"
    )
    spec = export_spec(load_recipe(str(tmp_path / "r.yaml")).recipe)
    assert spec.calibration is not None
    assert (spec.calibration.file, spec.calibration.name) == (f"{tmp_path}/samples.py", "make")
    assert spec.calibration_text is None


def test_the_picture_is_relative_to_the_recipe(tmp_path: Path) -> None:
    folder = model_folder(tmp_path, {"architectures": ["ViTForImageClassification"]})
    (tmp_path / "cat.png").touch()
    (tmp_path / "r.yaml").write_text(
        f"model: {{hf: {folder}}}\nbenchmark: {{input: {{image: cat.png}}}}\n"
    )
    spec = export_spec(load_recipe(str(tmp_path / "r.yaml")).recipe)
    assert spec.input == TaskInput(image=str(tmp_path / "cat.png"))
    assert spec.named_files()["image"] == str(tmp_path / "cat.png")


RESNET = {"architecture": "resnet18", "num_classes": 1000, "pretrained_cfg": {"num_classes": 1000}}


@pytest.mark.parametrize(
    ("named", "model", "revision"),
    [
        ("resnet18.a1_in1k", "timm/resnet18.a1_in1k", None),
        ("timm/resnet18.a1_in1k", "timm/resnet18.a1_in1k", None),
        ("hf_hub:timm/resnet18.a1_in1k@v2", "timm/resnet18.a1_in1k", "v2"),
        ("hf-hub:org/mine", "org/mine", None),
        ("https://huggingface.co/timm/vit.x/tree/v2", "timm/vit.x", "v2"),
    ],
)
def test_names_of_timm(named: str, model: str, revision: str | None) -> None:
    recipe = load_recipe("xnnpack", [f"model.timm={named}"]).recipe
    assert (recipe.model.timm, recipe.model.revision) == (model, revision)
    assert recipe.model.task == "image-classification"
    found = export_spec(recipe).hf
    assert found is not None
    assert (found.kind, found.id, found.revision) == ("timm", model, revision or "main")


@pytest.mark.parametrize(
    ("config", "task"),
    [
        (RESNET, "image-classification"),
        ({**RESNET, "num_classes": 0}, "feature-extraction"),
        ({"architecture": "vit"}, "image-classification"),
    ],
)
def test_a_folder_of_timm_is_recognized(tmp_path: Path, config: dict[str, Any], task: str) -> None:
    folder = model_folder(tmp_path, config)
    assert default_recipe(str(folder)) == default_recipe("timm/vit.in1k") == "xnnpack"
    loaded = load_recipe("xnnpack", [f"--model={folder}"])
    assert (loaded.recipe.model.timm, loaded.recipe.model.task) == (str(folder), task)
    assert loaded.named_model == str(folder)


@pytest.mark.parametrize(
    ("model", "key"),
    [
        ("timm: resnet18", "model.timm"),
        ("timm: ./missing", "model.timm"),
        ("{timm: a/b, hf: a/b}", "model"),
        ("{timm: a/b, task: fill-mask}", "model.task"),
        ("{timm: a/b, lora: c/d}", "model.lora"),
        ("{timm: /, revision: v2}", "model.revision"),
    ],
)
def test_models_of_timm_that_are_refused(tmp_path: Path, model: str, key: str) -> None:
    (tmp_path / "r.yaml").write_text(f"model: {model if model[0] == '{' else '{' + model + '}'}\n")
    with pytest.raises(RecipeError) as caught:
        load_recipe(str(tmp_path / "r.yaml"))
    (problem,) = caught.value.problems
    assert problem.message.startswith(f"{key}: ")


def test_a_model_of_timm_takes_images(tmp_path: Path) -> None:
    with pytest.raises(RecipeError) as caught:
        load_recipe("xnnpack", ["--model=timm/vit.in1k", "--text=a cat"])
    assert "image, not text" in caught.value.problems[0].message


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ("benchmark.generation.prompt=hello", "benchmark.generation.prompt"),
        ("benchmark.generation.depth=[8]", "benchmark.generation.depth"),
        ("export.generation.path=plain", "export.generation.path"),
        ("export.generation.attention=kernel", "export.generation.attention"),
        ("export.generation.cache=int8", "export.generation.cache"),
        ("export.generation.window=64", "export.generation.window"),
        ("export.generation.evaluate=README.md", "export.generation.evaluate"),
        ("export.calibration=README.md", "export.calibration"),
        ("model.lora=org/adapter", "model.lora"),
    ],
)
def test_what_only_prompts_have_is_refused_with_an_encoder(
    tmp_path: Path, setting: str, named: str
) -> None:
    folder = model_folder(tmp_path, WHISPER)
    with pytest.raises(RecipeError) as raised:
        load_recipe("llm-xnnpack", [f"--model={folder}", setting])
    assert not lacks(str(raised.value), named, "automatic-speech-recognition")
    assert load_recipe("llm-xnnpack", [f"--model={folder}"]).recipe.is_language_model


def test_a_language_is_for_models_that_generate_text(tmp_path: Path) -> None:
    bert = model_folder(tmp_path, {"architectures": ["BertForMaskedLM"]})
    with pytest.raises(RecipeError, match=r"benchmark\.input\.language"):
        load_recipe("xnnpack", [f"--model={bert}", "benchmark.input.language=en"])
