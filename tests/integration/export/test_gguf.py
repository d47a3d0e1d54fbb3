"""Language models in GGUF: what is loaded of them, and what a program computes with."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.export import run_python
from tests.support.gguf_files import END, LAYERS, VOCABULARY, byte_tokens

pytest.importorskip("transformers", reason="needs etdeploy[llm]")
pytest.importorskip("gguf", reason="needs etdeploy[llm]")
pytestmark = pytest.mark.integration

_LAYERS = 7 * LAYERS
# The output layer has the weight of the embeddings.
_STORED = _LAYERS + 1


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What tests/support/gguf_export.py found."""
    folder = tmp_path_factory.mktemp("gguf")
    run_python("-m", "tests.support.gguf_export", str(folder / "r.json"), str(folder))
    result: dict[str, Any] = json.loads((folder / "r.json").read_text())
    return result


def test_weights_are_those_that_the_package_reads(made: dict[str, Any]) -> None:
    assert {kind: told["off"] for kind, told in made["models"].items()} == dict.fromkeys(
        made["models"], 0
    )


@pytest.mark.parametrize(
    ("kind", "stored", "fitting"),
    [
        ("F32", 0, 0),
        ("F16", 0, 0),
        ("BF16", 0, 0),
        ("Q4_0", _STORED, _STORED),
        ("Q4_1", _STORED, _STORED),
        ("Q5_0", _STORED, 0),
        ("Q8_0", _STORED, 0),
    ],
)
def test_blocks_that_kernels_compute_with_are_known(
    made: dict[str, Any], kind: str, stored: int, fitting: int
) -> None:
    told = made["models"][kind]
    assert (told["stored"], told["fitting"]) == (stored, fitting)
    assert told["stored_off"] < 1e-6


def test_the_tokenizer_and_the_template_are_those_of_the_file(made: dict[str, Any]) -> None:
    tokens = byte_tokens()
    for told in made["models"].values():
        assert [tokens[i] for i in told["ids"]] == ["th", "e", "Ġ", "1", "2"]
        assert told["chat"] == f"<user>hi{END}<assistant>"
        assert told["stops"] == [VOCABULARY - 1]
        assert told["notes"] == []


def test_a_program_computes_with_the_blocks(made: dict[str, Any]) -> None:
    told = made["program"]
    assert f"{_STORED} linear layers in Q4_0" in " ".join(told["notes"])
    assert told["cosine"] > 0.999
    # An activation at the middle of two codes rounds to either, depending on the order of sums.
    assert told["distance"] < 0.03 * told["largest"]
    # From the weights of the file in floats: what activations and embeddings of 8 bits cost.
    assert told["moved"] < 0.15 * told["largest"]
