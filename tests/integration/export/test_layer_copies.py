"""A program whose layers are copies of a few is that of all layers, byte for byte."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.export import nightly_except, run_support

pytest.importorskip("transformers", reason="needs etdeploy[llm]")
pytestmark = pytest.mark.integration

# By the model: which of its layers are traced.
_ALIKE, _TWO_KINDS = [0, 1], [0, 1, 2, 3]
CHOSEN = {
    "llama": _ALIKE,
    "llama-methods": _ALIKE,
    "llama-stock": _ALIKE,
    "llama-plain": _ALIKE,
    "llama-executorch": [0, 1, 2],
    "llama-floats": _ALIKE,
    "llama-int8": _ALIKE,
    "llama-8da8w": _ALIKE,
    "llama-linears": _ALIKE,
    "llama-mixed": [0, 1, 2, 4],
    "gemma3": [0, 1, 2, 5],
    "gemma3-plain": [0, 1, 2, 5],
    "gemma2": _TWO_KINDS,
    "qwen2.5": _ALIKE,
    "qwen3": _ALIKE,
    "phi": _ALIKE,
    "phi3": _ALIKE,
    "smollm3": [0, 1, 3, 7],
    "granite": _ALIKE,
    "lfm2": [0, 1, 2, 5],
    "mamba": _ALIKE,
    "mamba2": _ALIKE,
    "falcon-mamba": _ALIKE,
    "jamba": _TWO_KINDS,
    "falcon-h1": _ALIKE,
    "qwen3-next": _TWO_KINDS,
    "granite-hybrid": _TWO_KINDS,
    "mixtral": _ALIKE,
    "qwen2-moe": _ALIKE,
    "qwen3-moe": _ALIKE,
    "deepseek-v2": [0, 1, 2],
    "mixtral-plain": _ALIKE,
}
UNLIKE = {
    "llama-changed": "layer 3 differs from layer 1 in self_attn.scaling (0.5, not 0.25)",
    "rwkv": "its layers keep their states in one tensor",
    "xlstm": "its layers keep their states in one tensor",
    "recurrent-gemma": "its layers keep their states in one tensor",
}
_DAILY = ("llama", "llama-changed")


def _both_ways(name: str) -> dict[str, Any]:
    found: dict[str, Any] = run_support("layer_copies", name)[name]
    return found


@pytest.mark.parametrize("name", nightly_except(CHOSEN, *_DAILY))
def test_copies_of_layers_make_the_same_program(name: str) -> None:
    told = _both_ways(name)
    assert told["misfit"] is None
    assert set(map(tuple, told["chosen"].values())) == {tuple(CHOSEN[name])}
    copied, whole = told["digests"]
    assert copied == whole
    assert told["differing"] == []


@pytest.mark.parametrize("name", nightly_except(UNLIKE, *_DAILY))
def test_layers_that_differ_are_traced_one_by_one(name: str) -> None:
    assert _both_ways(name) == {"chosen": {}, "misfit": UNLIKE[name]}
