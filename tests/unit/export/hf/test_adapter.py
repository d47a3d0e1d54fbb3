"""What is read and refused of a LoRA adapter, before PyTorch is imported."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from etdeploy.cache.workspace import Workspace
from etdeploy.core.errors import ExportError
from etdeploy.export.cache import ExportContext
from etdeploy.export.hf.adapter import LoraConfig, base_note, read_adapter
from etdeploy.export.hf.config import ConfigProblem
from etdeploy.export.needs import check_needs
from etdeploy.export.spec import ExportSpec, HfModel
from etdeploy.recipe.sections.export import ExportGeneration
from tests.support.checkpoints import write_adapter, write_checkpoint, write_safetensors
from tests.support.facts import lacks


def refusal(folder: Path) -> ConfigProblem:
    found = read_adapter(folder)
    assert isinstance(found, ConfigProblem)
    return found


def config(folder: Path) -> LoraConfig:
    found = read_adapter(folder)
    assert isinstance(found, LoraConfig)
    return found


def test_a_scale_is_alpha_by_the_rank(tmp_path: Path) -> None:
    plain = config(write_adapter(tmp_path, r=8, lora_alpha=24))
    assert (plain.rank_of("a.q_proj"), plain.scale_of("a.q_proj")) == (8, 3.0)
    rooted = config(write_adapter(tmp_path, r=16, lora_alpha=24, use_rslora=True))
    assert rooted.scale_of("a.q_proj") == 6.0


def test_patterns_are_for_the_ends_of_paths(tmp_path: Path) -> None:
    patterns = {
        "rank_pattern": {"q_proj": 2, r"layers\.1\..*": 4},
        "alpha_pattern": {"q_proj": 5},
    }
    found = config(write_adapter(tmp_path, r=8, lora_alpha=8, **patterns))
    layers = ("model.layers.1.q_proj", "model.layers.1.k_proj", "model.layers.0.k_proj", "xq_proj")
    assert [found.rank_of(layer) for layer in layers] == [2, 4, 8, 8]
    assert [found.scale_of(layer) for layer in layers] == [2.5, 2.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("changes", "fact"),
    [
        ({"peft_type": "PREFIX_TUNING"}, "'PREFIX_TUNING'"),
        ({"peft_type": "IA3"}, "'IA3'"),
        ({"peft_type": None}, "LORA"),
        ({"init_lora_weights": "pissa_niter_4"}, "pissa_niter_4"),
        ({"layer_replication": [[0, 2]]}, "layer_replication"),
        ({"alora_invocation_tokens": [1, 2]}, "alora_invocation_tokens"),
        ({"target_parameters": ["experts.gate_up_proj"]}, "target_parameters"),
        ({"r": "many"}, "damaged"),
        ({"r": 0}, "damaged"),
        ({"lora_alpha": None}, "damaged"),
        ({"rank_pattern": {"(": 2}}, "damaged"),
    ],
)
def test_adapters_that_are_not_supported(
    tmp_path: Path, changes: dict[str, Any], fact: str
) -> None:
    found = refusal(write_adapter(tmp_path / "a", **changes))
    assert not lacks(found.message, fact)
    assert found.place == str(tmp_path / "a" / "adapter_config.json")


@pytest.mark.parametrize("content", ["{", "[]", ""])
def test_a_damaged_configuration(tmp_path: Path, content: str) -> None:
    path = write_adapter(tmp_path) / "adapter_config.json"
    path.write_text(content)
    assert refusal(tmp_path).place == str(path)


def test_a_folder_without_an_adapter(tmp_path: Path) -> None:
    assert not lacks(refusal(write_checkpoint(tmp_path)).message, "adapter_config.json")


def test_pickled_weights_are_never_loaded(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "it's")
    (folder / "adapter_model.safetensors").unlink()
    assert not lacks(refusal(folder).message, "adapter_model.safetensors")
    (folder / "adapter_model.bin").touch()
    found = refusal(folder)
    assert not lacks(found.message, "pickle", "adapter_model.bin")
    code = shlex.split(str(found.remedy).splitlines()[-1])[-1]
    compile(code, "remedy", "exec")
    assert not lacks(code, "weights_only=True", str(folder / "adapter_model.safetensors"))


@pytest.mark.parametrize(
    ("layer", "name"),
    [
        ("layers.3.attention.wq", "model.layers.3.self_attn.q_proj"),
        ("layers.3.feed_forward.w2", "model.layers.3.mlp.down_proj"),
        ("base_model.model.layers.3.attn.output_proj", "model.layers.3.self_attn.o_proj"),
    ],
)
def test_names_of_meta_and_torchtune_are_refused_with_those_of_transformers(
    tmp_path: Path, layer: str, name: str
) -> None:
    path = write_adapter(tmp_path) / "adapter_model.safetensors"
    write_safetensors(path, {f"{layer}.lora_{part}.weight": (4, 4) for part in "ab"})
    found = refusal(tmp_path)
    assert found.place == str(path)
    own = layer.removeprefix("base_model.model.")
    assert not lacks(found.message, "Meta or torchtune", f"like {own};", name)
    assert not lacks(str(found.remedy), "FullModelHFCheckpointer")


def test_damaged_weights_are_found_by_their_header(tmp_path: Path) -> None:
    path = write_adapter(tmp_path) / "adapter_model.safetensors"
    content = path.read_bytes()
    for size, fact in ((4, "no header"), (len(content) - 1, "it ends too early")):
        path.write_bytes(content[:size])
        assert refusal(tmp_path).place == str(path)
        assert not lacks(refusal(tmp_path).message, "damaged", fact)


@pytest.mark.parametrize(
    ("base", "model"),
    [
        ("unsloth/Llama-3.2-1B-Instruct-unsloth-bnb-4bit", "llama-3.2-1b-instruct"),
        ("org/Llama-3.2-1B", "./Llama-3.2-1B-Q4_K_M.gguf"),
        ("org/Llama-3.2-1B", "org/Llama-3.2-1B.IQ4_XS.gguf"),
        ("org/Qwen3-0.6B", "org/Qwen3-0.6B-GPTQ-Int4"),
        ("org/Qwen3-0.6B", "org/Qwen3-0.6B-quantized.w4a16"),
        ("org/SmolLM2-135M", "SmolLM2-135M-BF16.gguf"),
    ],
)
def test_a_quantized_model_is_called_like_the_original(base: str, model: str) -> None:
    assert base_note(LoraConfig(8, 8, base=base), "poems", model) is None


@pytest.mark.parametrize("model", ["Llama-3.2-1B-Instruct-Q8_0.gguf", "Llama-3.2-3B", "Llama-3"])
def test_another_model_of_the_family_is_noted(model: str) -> None:
    note = base_note(LoraConfig(8, 8, base="org/Llama-3.2-1B"), "poems", model)
    assert not lacks(str(note), "org/Llama-3.2-1B", model)


def test_an_adapter_of_another_model_is_noted(tmp_path: Path) -> None:
    found = config(write_adapter(tmp_path, base_model_name_or_path="org/SmolLM2-135M"))
    assert base_note(found, "poems", "smollm2-135m") is None
    assert base_note(LoraConfig(8, 8), "poems", "other") is None
    assert not lacks(base_note(found, "poems", "Llama"), "poems", "org/SmolLM2-135M", "Llama")


def spec_of(model: Path, adapter: Path) -> ExportSpec:
    return ExportSpec(
        hf=HfModel(folder=str(model)),
        lora=(HfModel(folder=str(adapter)),),
        generation=ExportGeneration(context=64),
        backend="xnnpack",
        quantization="none",
    )


def test_an_adapter_is_checked_before_anything_starts(tmp_path: Path) -> None:
    model = write_checkpoint(tmp_path / "m")
    check_needs(spec_of(model, write_adapter(tmp_path / "a")), {})
    with pytest.raises(ExportError) as caught:
        check_needs(spec_of(model, write_adapter(tmp_path / "b", peft_type="IA3")), {})
    assert caught.value.place == str(tmp_path / "b" / "adapter_config.json")


def test_a_program_is_known_by_what_is_in_the_adapter(tmp_path: Path) -> None:
    model, workspace = write_checkpoint(tmp_path / "m"), Workspace(tmp_path / "cache")

    def key(adapter: Path) -> str | None:
        return ExportContext.now(spec_of(model, adapter), workspace).known_key()

    first = key(write_adapter(tmp_path / "a"))
    assert first == key(write_adapter(tmp_path / "elsewhere"))
    assert first != key(write_adapter(tmp_path / "a", lora_alpha=99))
    assert (
        first
        != ExportContext.now(
            spec_of(model, tmp_path / "a").model_copy(update={"lora": ()}), workspace
        ).known_key()
    )
