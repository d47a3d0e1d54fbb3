"""What is added to a model that transformers has loaded from a GGUF file."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from etdeploy.export.worker.language.gguf import complete_config, complete_model
from tests.support.gguf_files import END, VOCABULARY, byte_tokens, tensors, write_gguf

DEFAULT = {"rope_type": "default", "rope_theta": 1e4}


def completed(path: Path, **given: Any) -> SimpleNamespace:
    values = {"vocab_size": 1, "pad_token_id": None, "rope_parameters": DEFAULT}
    config = SimpleNamespace(**{**values, **given})
    complete_config(path, config)
    return config


def scaled(path: Path, kind: str, **more: Any) -> Path:
    values = {"type": kind, "factor": 4.0, **more}
    return write_gguf(
        path, metadata={f"llama.rope.scaling.{key}": value for key, value in values.items()}
    )


@pytest.mark.parametrize(
    ("kind", "more", "expected"),
    [
        ("linear", {}, {"rope_type": "linear", "factor": 4.0}),
        (
            "yarn",
            {"original_context_length": 64},
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
        ),
        ("none", {}, {}),
        ("linear", {"factor": 1.0}, {}),
    ],
)
def test_positions_are_scaled(
    tmp_path: Path, kind: str, more: dict[str, Any], expected: dict[str, Any]
) -> None:
    config = completed(scaled(tmp_path / "m.gguf", kind, **more))
    assert config.rope_parameters == {**DEFAULT, **expected}


def test_layers_with_a_window_are_not_scaled(tmp_path: Path) -> None:
    rope = {"full_attention": DEFAULT, "sliding_attention": DEFAULT}
    config = completed(scaled(tmp_path / "m.gguf", "linear"), rope_parameters=dict(rope))
    assert config.rope_parameters["sliding_attention"] == DEFAULT
    assert config.rope_parameters["full_attention"] == {
        **DEFAULT,
        "rope_type": "linear",
        "factor": 4.0,
    }


def test_sizes_come_from_the_file(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", metadata={"llama.attention.key_length": 32})
    config = completed(
        path,
        pad_token_id=VOCABULARY,
        head_dim=128,
        attention_bias=True,
        query_pre_attn_scalar=256,
        num_hidden_layers=2,
    )
    assert (config.vocab_size, config.pad_token_id) == (VOCABULARY, None)
    assert (config.head_dim, config.query_pre_attn_scalar) == (32, 32)
    assert config.attention_bias is False


class _Model(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.generation_config = SimpleNamespace(eos_token_id=None)
        self.register_buffer("inv_freq", torch.ones(8))


@pytest.mark.parametrize(
    ("names", "context", "expected"),
    [
        (("rope_freqs",), 64, 2.0),
        (("rope_factors_short", "rope_factors_long"), 64, 2.0),
        (("rope_factors_short", "rope_factors_long"), 128, 3.0),
        ((), 64, 1.0),
    ],
)
def test_frequencies_are_divided_by_the_factors_of_the_file(
    tmp_path: Path, names: tuple[str, ...], context: int, expected: float
) -> None:
    weights = tensors()
    for place, name in enumerate(names):
        weights[f"{name}.weight"] = np.full(8, 2.0 + place, np.float32)
    metadata = {"llama.rope.scaling.original_context_length": 64}
    path = write_gguf(tmp_path / "m.gguf", weights=weights, metadata=metadata)
    model = _Model()
    complete_model(path, model, context)
    torch.testing.assert_close(model.inv_freq, torch.full((8,), 1 / expected))


def test_a_text_ends_at_the_end_of_a_turn_too(tmp_path: Path) -> None:
    metadata = {"tokenizer.ggml.eot_token_id": 5, "tokenizer.ggml.eom_token_id": 5}
    path = write_gguf(tmp_path / "m.gguf", metadata=metadata)
    model = _Model()
    complete_model(path, model, 64)
    assert model.generation_config.eos_token_id == [byte_tokens().index(END), 5]
