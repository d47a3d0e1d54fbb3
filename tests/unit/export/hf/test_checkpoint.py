"""What is refused of a checkpoint by its files, before PyTorch is imported."""

from __future__ import annotations

import ast
import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from etdeploy.export.derive import export_spec
from etdeploy.export.hf.check import (
    checkpoint_refusals,
    context_note,
    fit_context,
    no_weights,
    timm_refusals,
)
from etdeploy.export.hf.config import ConfigProblem, code_files, foreign_code
from etdeploy.export.hf.files import loaded_files
from etdeploy.export.hf.tensors import checkpoint_tensors
from etdeploy.export.spec import ExportSpec
from etdeploy.recipe.load import load_recipe
from tests.support.checkpoints import write_checkpoint, write_safetensors
from tests.support.facts import lacks


def refusal(folder: Path, context: int = 64) -> ConfigProblem:
    return next(checkpoint_refusals(folder, context))


def test_a_sound_checkpoint(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "m")
    assert list(checkpoint_refusals(folder, 256)) == []
    assert len(checkpoint_tensors(folder).infos) == 2
    kinds = ["conv", "sliding_attention", "full_attention"]
    for changes in ({"layer_types": kinds}, {"architectures": None}):
        assert list(checkpoint_refusals(write_checkpoint(folder, **changes), 64)) == []


def test_weights_in_several_files(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "m")
    (folder / "model.safetensors").unlink()
    parts = {"model-1-of-2.safetensors": ["a"], "model-2-of-2.safetensors": ["b", "c"]}
    for name, tensors in parts.items():
        write_safetensors(folder / name, dict.fromkeys(tensors, (2, 3)))
    index = {tensor: name for name, tensors in parts.items() for tensor in tensors}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    assert list(checkpoint_refusals(folder, 64)) == []
    assert set(checkpoint_tensors(folder).infos) == {"a", "b", "c"}
    (folder / "model-2-of-2.safetensors").unlink()
    assert not lacks(refusal(folder).message, "1 file ", "model-2-of-2.safetensors")


@pytest.mark.parametrize(
    ("index", "fact"),
    [
        ("{}", "no weight_map"),
        ('{"weight_map": {"a": "../../etc/passwd"}}', "'../../etc/passwd'"),
        ("[]", "JSON object"),
    ],
)
def test_a_damaged_index(tmp_path: Path, index: str, fact: str) -> None:
    folder = write_checkpoint(tmp_path / "m")
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(index)
    assert not lacks(refusal(folder).message, "the index", fact)


def test_pickles_are_never_loaded(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "it's")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    (folder / "optimizer.pt").write_text("")
    found = refusal(folder)
    assert not lacks(found.message, "(pytorch_model.bin)", "only safetensors")
    assert found.remedy is not None
    assert "--model ./converted" in found.remedy
    assert str(folder) in _literals(found)
    assert "AutoTokenizer" not in found.remedy
    (folder / "tokenizer.json").write_text("{}")
    assert "AutoTokenizer" in str(refusal(folder).remedy)


def _literals(found: ConfigProblem) -> list[str]:
    """The texts in the code of a remedy's command that runs with this Python."""
    commands = [shlex.split(line) for line in str(found.remedy).splitlines() if " -c " in line]
    [[python, _, code]] = commands
    assert python == sys.executable
    return [n.value for n in ast.walk(ast.parse(code)) if isinstance(n, ast.Constant)]  # type: ignore[misc]


@pytest.mark.parametrize(
    ("files", "fact"),
    [
        ([], "(model.safetensors)"),
        (["model.Q4_K.gguf"], "1 file in GGUF, llama.cpp's format: model.Q4_K.gguf"),
        (["adapter_model.safetensors"], "an adapter"),
    ],
)
def test_no_weights(tmp_path: Path, files: list[str], fact: str) -> None:
    folder = write_checkpoint(tmp_path / "m")
    (folder / "model.safetensors").unlink()
    for name in files:
        (folder / name).write_text("")
    assert fact in refusal(folder).message


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no header"),
        (b"\xff" * 64, "no header"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git-lfs's pointer"),
        ((2).to_bytes(8, "little") + b"[]", "JSON object"),
        ((9).to_bytes(8, "little") + b'{"a": {}}', "'shape'"),
    ],
)  # fmt: skip
def test_damaged_weights(tmp_path: Path, content: bytes, message: str) -> None:
    folder = write_checkpoint(tmp_path / "m")
    (folder / "model.safetensors").write_bytes(content)
    found = refusal(folder)
    assert not lacks(found.message, "damaged", message)
    assert found.place == str(folder / "model.safetensors")


def test_weights_that_were_not_copied_to_their_end(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "m")
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-4])
    assert not lacks(refusal(folder).message, "damaged", "1020 of 1024 bytes")


def test_a_pipeline_of_diffusers_is_named(tmp_path: Path) -> None:
    (tmp_path / "model_index.json").write_text("{}")
    found = refusal(tmp_path)
    assert "(model_index.json)" in found.message
    assert no_weights(["README.md", "model_index.json"], "org/images").message == found.message


@pytest.mark.parametrize(
    ("config", "fact"),
    [
        ({"architectures": ["BertForMaskedLM"]}, "for the task fill-mask"),
        ({"architectures": ["T5ForConditionalGeneration"], "is_encoder_decoder": True},
         "T5ForConditionalGeneration is an encoder with a decoder, for the task text2text"),
        ({"architectures": ["LlavaForConditionalGeneration"], "vision_config": {}},
         "LlavaForConditionalGeneration takes more than text"),
        ({"architectures": ["RwkvForCausalLM"], "rescale_every": 6},
         "RwkvForCausalLM keeps its state"),
        ({"architectures": ["Llama4ForCausalLM"],
          "layer_types": ["full_attention", "chunked_attention"]},
         "kind chunked_attention;"),
        ({"quantization_config": {"quant_method": "mxfp4"}}, "quantized by mxfp4"),
    ],
)  # fmt: skip
def test_models_that_are_not_supported(tmp_path: Path, config: dict[str, Any], fact: str) -> None:
    found = refusal(write_checkpoint(tmp_path / "m", **config))
    assert fact in found.message
    assert found.remedy


@pytest.mark.parametrize(
    "config",
    [
        {"architectures": ["RwkvForCausalLM"], "model_type": "rwkv", "rescale_every": 6},
        {"architectures": ["xLSTMForCausalLM"], "model_type": "xlstm"},
        {"architectures": ["RecurrentGemmaForCausalLM"], "model_type": "recurrent_gemma",
         "block_types": ["recurrent", "attention"]},
    ],
)  # fmt: skip
def test_models_with_states_of_their_own(tmp_path: Path, config: dict[str, Any]) -> None:
    folder = write_checkpoint(tmp_path / "m", **config)
    assert list(checkpoint_refusals(folder, 64)) == []


@pytest.mark.parametrize(
    ("config", "task", "context", "facts"),
    [
        ({"architectures": ["BertForMaskedLM"]}, "text-classification", 0,
         ["BertForMaskedLM", "fill-mask", "--set model.task=fill-mask"]),
        ({"architectures": ["ViTForImageClassification"]}, "automatic-speech-recognition", 64,
         ["image-classification, not", "--set model.task=image-classification"]),
        ({"architectures": ["VitsModel"]}, "text-to-speech", 0,
         ["at random", "FastSpeech2Conformer"]),
        ({"architectures": ["SpeechT5ForTextToSpeech"], "is_encoder_decoder": True},
         "text-to-speech", 0, ["frame by frame", "FastSpeech2Conformer"]),
        ({"architectures": ["Wav2Vec2ForCTC"]}, "automatic-speech-recognition", 64,
         ["Wav2Vec2ForCTC", "at once", "-r xnnpack"]),
        ({"architectures": ["Florence2ForConditionalGeneration"], "vision_config": {},
          "is_encoder_decoder": True},
         "image-text-to-text", 64, ["Florence2ForConditionalGeneration", "image as embeddings"]),
        ({"architectures": ["LlavaForConditionalGeneration"], "vision_config": {},
          "text_config": {"max_position_embeddings": 48}},
         "image-text-to-text", 64, ["48 positions", "64"]),
        ({"architectures": ["Qwen2AudioForConditionalGeneration"], "audio_config": {}},
         "automatic-speech-recognition", 64, ["Qwen2Audio", "encoder with a decoder"]),
        ({"architectures": ["WhisperForConditionalGeneration"], "is_encoder_decoder": True,
          "num_mel_bins": 80, "max_target_positions": 48},
         "automatic-speech-recognition", 64, ["48 positions", "64"]),
        ({"architectures": ["BertForMaskedLM"], "quantization_config": {"quant_method": "awq"}},
         "fill-mask", 0, ["quantized", "export.quantization"]),
    ],
)  # fmt: skip
def test_models_that_do_not_fit_their_task(
    tmp_path: Path, config: dict[str, Any], task: str, context: int, facts: list[str]
) -> None:
    folder = write_checkpoint(tmp_path / "m", **config)
    found = next(checkpoint_refusals(folder, context, task))
    assert not lacks(f"{found.message} {found.remedy}", *facts)


@pytest.mark.parametrize(
    ("architecture", "task"),
    [
        ("BertForMaskedLM", "fill-mask"),
        ("BertForMaskedLM", "feature-extraction"),
        ("Wav2Vec2ForCTC", "automatic-speech-recognition"),
    ],
)
def test_models_that_fit_their_task(tmp_path: Path, architecture: str, task: str) -> None:
    folder = write_checkpoint(tmp_path / "m", architectures=[architecture])
    assert list(checkpoint_refusals(folder, 0, task)) == []


def test_what_is_no_model(tmp_path: Path) -> None:
    assert "no config.json" in refusal(tmp_path).message
    (tmp_path / "config.json").write_text("{")
    assert "damaged: Expecting" in refusal(tmp_path).message
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").mkdir()
    assert ": Is a directory" in refusal(tmp_path).message


def test_a_model_of_no_kind(tmp_path: Path) -> None:
    found = refusal(write_checkpoint(tmp_path / "m", model_type=None))
    assert not lacks(found.message, "config.json", "model_type")
    own = write_checkpoint(tmp_path / "own", model_type=None, auto_map={"AutoConfig": "own.Own"})
    assert list(checkpoint_refusals(own, 64)) == []


@pytest.mark.parametrize(
    ("content", "fact"),
    [
        ('{"eos_', "damaged: Unterminated"),
        ("[]", "JSON object"),
        ('{"eos_token_id": "</s>"}', "eos_token_id is '</s>',"),
        ('{"eos_token_id": [2, null]}', "is [2, None],"),
    ],
)
def test_tokens_that_end_a_text_and_cannot_be_read(tmp_path: Path, content: str, fact: str) -> None:
    path = write_checkpoint(tmp_path / "m") / "generation_config.json"
    path.write_text(content)
    found = refusal(tmp_path / "m")
    assert fact in found.message
    assert found.place == str(path)
    for sound in ("{}", '{"eos_token_id": 2}', '{"eos_token_id": [2, 3]}'):
        path.write_text(sound)
        assert list(checkpoint_refusals(tmp_path / "m", 64)) == []


def test_code_that_a_configuration_names() -> None:
    own = {"auto_map": {"AutoConfig": "configuration_x.C", "AutoModel": ["modeling_x.M", None]}}
    assert code_files(own) == {"configuration_x.py", "modeling_x.py"}
    assert foreign_code(own) is None
    other = {"auto_map": {"AutoModelForCausalLM": "org/other--modeling_x.M"}}
    assert (foreign_code(other), code_files(other)) == ("org/other", set())


def test_an_adapter_needs_the_model_that_it_changes(tmp_path: Path) -> None:
    folder = tmp_path / "it's"
    folder.mkdir()
    (folder / "adapter_config.json").touch()
    words = shlex.split(str(refusal(folder).remedy))
    assert not lacks(refusal(folder).message, "an adapter")
    assert words[-2:] == ["--set", f"model.lora={folder}"]


def test_the_file_is_named_where_a_folder_has_gguf_only(tmp_path: Path) -> None:
    for name in ("m-Q8_0.gguf", "m-Q4_0.gguf"):
        (tmp_path / name).touch()
    assert str(refusal(tmp_path).remedy).endswith(f"--model {tmp_path}/m-Q4_0.gguf")


def test_a_context_that_was_chosen_for_another_model_is_lowered(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "m")

    def fitted(name: str, *overrides: str) -> ExportSpec:
        loaded = load_recipe(name, overrides)
        return fit_context(export_spec(loaded.recipe, loaded.places), loaded.places)

    own = tmp_path / "own.yaml"
    own.write_text(f"model: {{hf: {folder}}}\nexport: {{generation: {{context: 300}}}}\n")
    extending = tmp_path / "extending.yaml"
    extending.write_text(f"extends: llm-xnnpack\nmodel: {{hf: {folder}}}\n")
    for spec in (fitted("llm-xnnpack", f"--model={folder}"), fitted(str(extending))):
        assert spec.generation is not None
        assert (spec.generation.context, spec.recipe_context) == (256, 2048)
        note = str(context_note(spec))
        assert "256" in note
        assert "2,048" in note
    sees = write_checkpoint(
        tmp_path / "sees", architectures=["LlavaForConditionalGeneration"], vision_config={},
        max_position_embeddings=None, text_config={"max_position_embeddings": 128},
    )  # fmt: skip
    spec = fitted("llm-xnnpack", f"--model={sees}")
    assert spec.generation
    assert spec.generation.context == 128
    for spec, context in (
        (fitted(str(own)), 300),
        (fitted("llm-xnnpack", f"--model={folder}", "--context=257"), 257),
        (fitted("llm-xnnpack", f"--model={folder}", "export.generation.context=200"), 200),
    ):
        assert spec.generation is not None
        assert (spec.generation.context, context_note(spec)) == (context, None)


def timm_folder(folder: Path, **changes: Any) -> Path:
    folder.mkdir()
    config = {"architecture": "resnet18", "num_classes": 4, "pretrained_cfg": {"num_classes": 4}}
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    write_safetensors(folder / "model.safetensors", {"fc.weight": (4, 8)})
    return folder


def test_a_sound_model_of_timm(tmp_path: Path) -> None:
    folder = timm_folder(tmp_path / "m", label_names=["a", "b", "c", "d"])
    assert list(timm_refusals(folder, "image-classification")) == []
    assert set(loaded_files(folder, code=False)) == {"config.json", "model.safetensors"}
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    assert list(timm_refusals(folder, "image-classification")) == []
    assert set(loaded_files(folder, code=False)) == {"config.json", "pytorch_model.bin"}


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({"architecture": None}, ("model.hf",)),
        ({"num_classes": 5}, ("num_classes is 5", "pretrained_cfg.num_classes is 4")),
        ({"model_args": {"num_classes": 5}}, ("model_args.num_classes is 5",)),
        ({"label_names": ["a"]}, ("1 name", "4 classes")),
        (
            {"num_classes": 0, "pretrained_cfg": {}},
            ("resnet18", "--set model.task=feature-extraction"),
        ),
    ],
)
def test_a_configuration_of_timm_that_is_wrong(
    tmp_path: Path, changes: dict[str, Any], facts: tuple[str, ...]
) -> None:
    folder = timm_folder(tmp_path / "m", **changes)
    found = next(timm_refusals(folder, "image-classification"))
    assert not lacks(f"{found.message}\n{found.remedy}", *facts)


def test_a_model_of_timm_without_weights(tmp_path: Path) -> None:
    folder = timm_folder(tmp_path / "m")
    (folder / "model.safetensors").write_bytes(b"{}")
    (damaged,) = timm_refusals(folder, None)
    assert damaged.place == str(folder / "model.safetensors")
    (folder / "model.safetensors").rename(folder / "model.npz")
    (missing,) = timm_refusals(folder, None)
    assert not lacks(missing.message, "model.safetensors", "model.npz")


def test_a_model_of_timm_is_not_one_of_transformers(tmp_path: Path) -> None:
    folder = timm_folder(tmp_path / "m")
    found = next(checkpoint_refusals(folder, 0, "image-classification"))
    assert not lacks(str(found.remedy), f"model.timm={folder}")
