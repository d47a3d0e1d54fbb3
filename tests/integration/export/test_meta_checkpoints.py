"""Checkpoints of Meta and torchtune give the logits of ExecuTorch's own Llama."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.export import run_support

pytest.importorskip("transformers", reason="needs etdeploy[llm]")
pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder: Path = tmp_path_factory.mktemp("meta")
    made: dict[str, Any] = run_support("meta_checkpoints", str(folder))
    return made


@pytest.mark.parametrize("kind", ["meta", "scaled", "torchtune", "tied"])
def test_logits(found: dict[str, Any], kind: str) -> None:
    assert found["distances"][kind] < 1e-4  # of logits with a deviation above 0.1


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("wider", "layers.0.feed_forward.w1.weight has the shape [64, 32], and the params give "
                  "[128, 32]"),
        ("fewer", "layers.1.attention.wq.weight is missing"),
        ("more", "layers.1.attention.wq.weight is in a layer beyond n_layers"),
        ("other", "layers.0.moe.gate"),
        ("code", "could run code"),
    ],
)  # fmt: skip
def test_checkpoints_that_do_not_fit(found: dict[str, Any], kind: str, says: str) -> None:
    assert says in found["refusals"][kind]


def test_tokenizers_give_the_ids_of_their_libraries(found: dict[str, Any]) -> None:
    assert found["texts"] == {"tiktoken": [], "sentencepiece": []}
