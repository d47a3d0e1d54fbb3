"""What params.json of Meta's checkpoints say of a model, and the names of their tensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from etdeploy.core.errors import ExportError
from etdeploy.export.derive import export_spec
from etdeploy.export.hf.config import ConfigProblem
from etdeploy.export.hf.meta import expected_shapes, meta_name, name_in_transformers, read_params
from etdeploy.export.needs import check_language_model
from etdeploy.export.spec import ExportSpec
from etdeploy.recipe.load import load_recipe

LLAMA_2_7B = {
    "dim": 4096, "multiple_of": 256, "n_heads": 32, "n_layers": 32, "norm_eps": 1e-05,
    "vocab_size": -1,
}  # fmt: skip
LLAMA_3_8B = {
    "dim": 4096, "n_layers": 32, "n_heads": 32, "n_kv_heads": 8, "vocab_size": 128256,
    "multiple_of": 1024, "ffn_dim_multiplier": 1.3, "norm_eps": 1e-05, "rope_theta": 500000.0,
}  # fmt: skip
LLAMA_3_2_1B = {
    "dim": 2048, "n_layers": 16, "n_heads": 32, "n_kv_heads": 8, "vocab_size": 128256,
    "ffn_dim_multiplier": 1.5, "multiple_of": 256, "norm_eps": 1e-05, "rope_theta": 500000.0,
    "use_scaled_rope": True, "rope_scale_factor": 32,
}  # fmt: skip


def read(folder: Path, params: Any) -> dict[str, Any] | ConfigProblem:
    path = folder / "params.json"
    path.write_text(json.dumps(params))
    return read_params(path)


@pytest.mark.parametrize(
    ("params", "inner", "groups", "positions"),
    [
        (LLAMA_2_7B, 11008, 32, 4096),
        (LLAMA_3_8B, 14336, 8, 8192),
        (LLAMA_3_2_1B, 8192, 8, 131072),
    ],
)
def test_sizes_of_published_models(
    tmp_path: Path, params: dict[str, Any], inner: int, groups: int, positions: int
) -> None:
    config = read(tmp_path, params)
    assert isinstance(config, dict)
    assert config["intermediate_size"] == inner
    assert config["num_key_value_heads"] == groups
    assert config["max_position_embeddings"] == positions
    assert config.get("vocab_size") == (None if params is LLAMA_2_7B else 128256)


def test_scaled_rotations(tmp_path: Path) -> None:
    config = read(tmp_path, LLAMA_3_2_1B)
    assert isinstance(config, dict)
    rope = config["rope_parameters"]
    assert (rope["rope_type"], rope["factor"], rope["rope_theta"]) == ("llama3", 32, 500000)


@pytest.mark.parametrize(
    ("change", "says", "remedy"),
    [
        ({"n_layers": None}, "n_layers", "llm_config"),
        ({"attention_qkv_bias": True}, "attention_qkv_bias", "llm_config"),
        ({"n_kv_heads": 5}, "n_kv_heads 5", "llm_config"),
        ({"n_heads": 33, "n_kv_heads": 11}, "n_heads 33", "llm_config"),
        ({"use_scaled_rope": True}, "rope_scale_factor", "32 for Llama 3.2"),
    ],
)
def test_params_that_no_llama_has(
    tmp_path: Path, change: dict[str, Any], says: str, remedy: str
) -> None:
    problem = read(tmp_path, {**LLAMA_3_8B, **change})
    assert isinstance(problem, ConfigProblem)
    assert says in problem.message
    assert remedy in str(problem.remedy)
    assert problem.place == str(tmp_path / "params.json")


def test_a_file_that_is_no_object(tmp_path: Path) -> None:
    for content in ("[1]", "{", ""):
        (tmp_path / "params.json").write_text(content)
        assert isinstance(read_params(tmp_path / "params.json"), ConfigProblem)


def test_names(tmp_path: Path) -> None:
    config = read(tmp_path, LLAMA_3_8B)
    assert isinstance(config, dict)
    shapes = expected_shapes(config, 128256)
    for name in shapes:
        assert name_in_transformers(meta_name(name)) == name
    tune = {"layers.3.attn.output_proj.weight", "layers.3.sa_norm.scale", "norm.scale"}
    assert {name_in_transformers(name) for name in tune} <= shapes.keys()
    assert name_in_transformers("rope.freqs") == ""
    for other in ("layers.0.norm.weight", "attention.wq.weight", "layers.0.attention.bias"):
        assert name_in_transformers(other) is None


def spec_of(folder: Path, more: str = "") -> ExportSpec:
    (folder / "consolidated.00.pth").touch()
    (folder / "r.yaml").write_text(f"model: {{checkpoint: consolidated.00.pth}}\n{more}")
    loaded = load_recipe(str(folder / "r.yaml"))
    return export_spec(loaded.recipe, loaded.places)


def test_params_are_those_beside_the_checkpoint(tmp_path: Path) -> None:
    spec = spec_of(tmp_path)
    assert spec.hf
    assert spec.hf.params == f"{tmp_path}/params.json"
    read(tmp_path, LLAMA_3_8B)
    assert check_language_model(spec) is None


def test_a_context_beyond_the_models_positions(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "export: {generation: {context: 9000}}\n")
    read(tmp_path, LLAMA_3_8B)
    with pytest.raises(ExportError, match="8192 positions") as caught:
        check_language_model(spec)
    assert str(caught.value.place).endswith("r.yaml:2:23")
