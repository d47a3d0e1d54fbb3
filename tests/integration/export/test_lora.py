"""LoRA adapters, merged with a language model: compared with peft, and what is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from etdeploy.cache.workspace import Workspace
from tests.support.cli import Cli
from tests.support.export import export_workspace  # noqa: F401 - a fixture
from tests.support.facts import lacks

pytestmark = [
    pytest.mark.integration,
    # peft would import PyTorch here.
    pytest.mark.skipif(find_spec("peft") is None, reason="peft is not installed"),
]

ROOT = Path(__file__).resolve().parents[3]
# float32 sums in another order.
_ROUNDING = 2e-5
_KINDS = (
    "plain", "all_linear", "rank_stabilized", "patterns", "dora", "embeddings", "whole_modules",
    "tied_output", "gpt2_biases", "lora_bias",
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Gets the models and adapters that `merges` makes."""
    return tmp_path_factory.mktemp("adapters")


@pytest.fixture(scope="module")
def merges(folder: Path) -> dict[str, dict[str, Any]]:
    """What came of each adapter in tests/support/lora_merges.py."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.lora_merges", str(folder)],
        cwd=ROOT,
        env={**os.environ, "HF_HOME": str(folder / "home"), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("name", _KINDS)
def test_logits_are_those_of_peft(merges: dict[str, dict[str, Any]], name: str) -> None:
    found = merges[name]
    assert found["adapter_moves"] > 0.5
    assert found["distance"] < _ROUNDING
    assert found.get("distance_from_merged", 0) < _ROUNDING
    assert found["notes"] == []


@pytest.mark.parametrize("name", _KINDS)
def test_an_adapter_apart_gives_the_same_and_shares_the_weights(
    merges: dict[str, dict[str, Any]], name: str
) -> None:
    found = merges[name]
    assert found["distance_apart"] < _ROUNDING
    assert found["base_moves"] == 0
    if name not in ("whole_modules", "gpt2_biases"):  # which replace weights of the model
        assert found["shared"] == 1


def test_several_adapters_add_up(merges: dict[str, dict[str, Any]]) -> None:
    assert merges["two_of_them"]["distance"] < _ROUNDING


def test_a_changed_layer_is_no_longer_what_the_checkpoint_stores(
    merges: dict[str, dict[str, Any]],
) -> None:
    assert merges["stored"]["stored"] == ["model.layers.0.self_attn.k_proj"]


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("narrow", ("lora_A of model.layers.1.self_attn.q_proj", "[8, 32]", "[8, 64]")),
        ("wider", ("lora_A of model.layers.0.self_attn.q_proj", "[8, 64]", "[8, 128]")),
        ("other_rank", ("lora_A", "[8, 64]", "[16, 64]")),
        ("deeper", ("model.layers.1.self_attn.q_proj", "model.layers.1.self_attn.v_proj")),
        ("missing_matrix", ("lora_B of model.layers.1.self_attn.q_proj", "missing")),
        ("cut", ("damaged", "ends too early", "968 of 14336 bytes")),
    ],
)
def test_adapters_that_do_not_fit_are_refused(
    merges: dict[str, dict[str, Any]], name: str, facts: tuple[str, ...]
) -> None:
    found = merges[name]
    assert found["kind"] == "checkpoint"
    assert not lacks(found["message"], *facts)
    assert found["file"] == f"{found['adapter']}/adapter_model.safetensors"
    assert found["remedy"]


@pytest.mark.parametrize("name", ["gguf", "gptq", "meta"])
def test_adapters_of_other_checkpoints_give_the_logits_of_peft(
    merges: dict[str, dict[str, Any]], name: str
) -> None:
    """The reference is a model with the floats that the checkpoint stands for."""
    found = merges[f"{name}_base"]
    assert found["adapter_moves"] > 0.5
    assert found["distance"] < _ROUNDING
    assert found["distance_from_merged"] < _ROUNDING
    assert found["distance_apart"] < _ROUNDING
    assert found["base_moves"] < _ROUNDING
    # Beside weights that are not changed, what the checkpoint has quantized is carried over.
    quantized = {"gguf": 15, "gptq": 14, "meta": 0}[name]
    tied = name == "gguf"  # whose output layer the adapter does not change
    assert (found["stored"], found["stored_apart"]) == (int(tied), quantized)


def test_an_adapter_of_another_model_that_fits_is_noted(merges: dict[str, dict[str, Any]]) -> None:
    assert merges["unchanged"]["notes"] == []
    [note] = merges["other_base"]["notes"]
    assert not lacks(note, "org/Other-1B", "plain-model")


def _chat(cli: Cli, recipe: str, *chosen: str) -> list[dict[str, Any]]:
    """Two answers of one chat."""
    done = subprocess.run(
        cli.argv("chat", "--recipe", recipe, "--json", "-q", "--max-new-tokens", "4", *chosen),
        cwd=cli.folder,
        env=cli.environment(),
        input="the fox\nthe dog\n",
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


_APART = """
model: {{hf: {folder}/small-model, lora: {{few: {folder}/small-few, all: {folder}/small-all}},
  merge: false}}
export: {{backend: xnnpack, quantization: 8da4w,
  generation: {{context: 64, prefill_tokens: 32, attention: kernel, evaluate: none}}}}
benchmark: {{runs: 1, memory: false, profile: false,
  generation: {{prompt_tokens: [8], new_tokens: [4]}}}}
"""


@pytest.mark.nightly
def test_each_adapter_of_a_program_gives_its_own_texts(
    merges: dict[str, dict[str, Any]],
    folder: Path,
    export_workspace: Workspace,  # noqa: F811
    tmp_path: Path,
) -> None:
    """The runner is fed the texts of the quantized model with the adapter, run eagerly."""
    cli = Cli(export_workspace.root, tmp_path, {})
    recipe = cli.recipe(_APART.format(folder=folder))
    record = cli.ok("run", "--recipe", recipe, "--lora", "few", "--json").json
    assert record["program"]["method"] == "few_decode"
    assert [text["within_tolerance"] for text in record["workload"]["texts"]] == [True, True]
    shown = cli.ok("run", "--recipe", recipe, "--lora", "all").stdout
    assert not lacks(shown, "small-model with the adapter all", "correct: ")
    answers = [
        cli.ok("generate", "--recipe", recipe, "--prompt", "the fox", "--json", *chosen).json
        for chosen in ((), ("--lora", "all"))
    ]
    assert answers[0]["token_ids"] != answers[1]["token_ids"]
    alone, adapted = (_chat(cli, recipe), _chat(cli, recipe, "--lora", "all"))
    assert [each["token_ids"] for each in alone] != [each["token_ids"] for each in adapted]
    for first, second in (alone, adapted):
        # Each adapter begins with an empty cache, which keeps its own conversation.
        assert (first["cached_tokens"], second["cached_tokens"] > 0) == (0, True)
