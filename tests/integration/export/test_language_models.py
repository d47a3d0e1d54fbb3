"""Language models as transformers loads them: float32, tokenizers, and what is refused."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from etdeploy.cache.workspace import Workspace
from etdeploy.core.values import silent
from etdeploy.export.run import export_program
from etdeploy.export.spec import EVALUATION_TEXT
from etdeploy.program.folder import ETRECORD_FILE, load_provenance
from etdeploy.program.generation import Evaluation
from tests.support.export import spec_of
from tests.support.facts import lacks
from tests.support.hub import COMMIT, Hub, serving

pytestmark = pytest.mark.integration
pytest.importorskip("transformers")

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Gets the models that `loads` makes."""
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def loads(folder: Path) -> dict[str, dict[str, Any]]:
    """What came of loading each of the models in tests/support/language_loads.py."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.language_loads", str(folder)],
        cwd=ROOT,
        env={**os.environ, "HF_HOME": str(folder / "home"), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize(
    "name",
    ["plain", "of_bfloat16", "of_float16", "in_parts", "tied", "tied_with_a_head", "token_objects"],
)
def test_a_model_is_of_float32_and_comes_with_its_tokenizer(
    loads: dict[str, dict[str, Any]], name: str
) -> None:
    assert loads[name] == {
        "dtypes": ["torch.float32"],
        "training": False,
        "vocabulary": 320,
        "bos_id": 1,
        "stop_ids": [2],
        "files": ["tokenizer.json", "tokenizer_config.json"],
        "notes": [],
        "ran": False,
    }


def test_a_text_may_end_in_several_ways(loads: dict[str, dict[str, Any]]) -> None:
    assert loads["several_stops"]["stop_ids"] == [2, 5]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("without_tokenizer", "without a tokenizer."),
        ("damaged_tokenizer", "(KeyError: 'added_tokens')."),
    ],
)
def test_without_a_tokenizer_there_are_ids_only(
    loads: dict[str, dict[str, Any]], name: str, why: str
) -> None:
    found = loads[name]
    [note] = found["notes"]
    assert not lacks(note, "ids of tokens", why)
    assert (found["files"], found["bos_id"], found["stop_ids"]) == ([], None, [2])


def test_weights_of_another_model(loads: dict[str, dict[str, Any]]) -> None:
    failure = loads["mismatch"]["failure"]
    assert failure["kind"] == "checkpoint"
    assert not lacks(
        failure["message"], "config.json", "9 tensors missing", "layers.2.input_layernorm.weight",
        "model.layers.2.mlp.down_proj.weight", "model.layers.2.mlp.gate_proj.weight",
        "model.layers.0.mlp.down_proj.weight", "[64, 96]", "[64, 80]",
        "model.layers.0.mlp.gate_proj.weight", "model.layers.0.mlp.up_proj.weight",
    )  # fmt: skip


def test_a_configuration_with_values_that_no_model_has(loads: dict[str, dict[str, Any]]) -> None:
    failure = loads["sizes_as_text"]["failure"]
    assert failure["file"].endswith("/sizes_as_text/config.json")
    assert not lacks(failure["message"], "'intermediate_size'", "expected int", "'96'")
    assert failure["remedy"]


def test_an_output_layer_that_is_neither_there_nor_tied(loads: dict[str, dict[str, Any]]) -> None:
    message = loads["without_a_head"]["failure"]["message"]
    assert not lacks(message, "config.json", "1 tensor missing", "(lm_head.weight)")


def test_weights_that_nothing_uses_are_told(loads: dict[str, dict[str, Any]]) -> None:
    [note] = loads["more_layers"]["notes"]
    assert not lacks(
        note, "9 tensors", "config.json", "model.layers.1.input_layernorm.weight",
        "model.layers.1.mlp.down_proj.weight", "model.layers.1.mlp.gate_proj.weight",
    )  # fmt: skip


def test_code_of_a_model_runs_only_if_it_is_named(loads: dict[str, dict[str, Any]]) -> None:
    refused, allowed = loads["own_code"], loads["own_code_allowed"]
    assert " of_its_own; " in refused["failure"]["message"]
    [_, setting] = shlex.split(refused["failure"]["remedy"].splitlines()[1])
    assert setting.startswith("model.remote_code=/")
    assert setting.endswith("/own_code")
    assert (refused["ran"], allowed["ran"], allowed["vocabulary"]) == (False, True, 320)


def test_code_of_another_repository_does_not_run(loads: dict[str, dict[str, Any]]) -> None:
    found = loads["code_of_another"]
    message = found["failure"]["message"]
    assert not lacks(message, "tokenizer_config.json", "org/other,", "code_of_another")
    assert found["ran"] is False


def test_a_type_that_transformers_does_not_have(loads: dict[str, dict[str, Any]]) -> None:
    failure = loads["unknown"]["failure"]
    assert failure["message"].endswith(" 'of_its_own'")


def test_a_model_of_the_hub_becomes_a_program_with_its_tokenizer_and_commit(
    loads: dict[str, dict[str, Any]],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert loads["plain"]["vocabulary"] == 320
    recipe = {
        "model": {"hf": "org/model"},
        "export": {
            "backend": "xnnpack",
            "quantization": "8da4w",
            "generation": {"context": 32, "prefill_tokens": 8},
        },
    }
    spec = spec_of(recipe).model_copy(update={"etrecord": False})  # as for `generate`
    monkeypatch.setenv("HF_HOME", str(folder / "hub"))
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    log, model, workspace = folder / "export.log", folder / "plain", Workspace(folder / "cache")
    with serving(Hub("org/model", model)) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        made = export_program(spec, workspace, silent, log)
    again = export_program(spec, workspace, silent, log)
    assert (made.cached, again.cached, again.key) == (False, True, made.key)
    told = load_provenance(Path(made.folder))
    assert (told.source, told.code_files) == ("org/model", {})
    generation = told.generation
    assert generation is not None
    assert (generation.model, generation.revision) == ("org/model", COMMIT)
    assert (generation.vocabulary, generation.context) == (320, 32)
    assert (generation.bos_id, generation.stop_ids) == (1, (2,))
    # The first prompt has half of the context at most; the second is longer than one call takes.
    texts = [(len(t.prompt_ids), len(t.expected.token_ids)) for t in generation.expected]
    assert texts == [(16, 16), (16, 8)]
    assert all(text.quantized for text in generation.expected)
    _check_evaluation(generation.evaluation)
    prefill = generation.method_for("prefill", 8)
    assert prefill is not None
    assert (prefill.max_tokens, set(told.methods)) == (8, {m.name for m in generation.methods})
    assert (prefill.verify_tokens, generation.verify_tokens) == (8, 8)
    tokenizer = Path(made.folder) / str(generation.tokenizer)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tokenizer / name).read_bytes() == (model / name).read_bytes()
    written = [log, *Path(made.folder).rglob("*.json")]
    assert not any("hf_secret" in path.read_text() for path in written)
    assert not (Path(made.folder) / ETRECORD_FILE).exists()
    _check_that_one_method_was_run(Path(made.folder))


def _check_evaluation(evaluation: Evaluation | None) -> None:
    """By default it is on the bundled text; random weights know nothing before and after."""
    assert evaluation is not None
    assert (evaluation.file, evaluation.whole) == (Path(EVALUATION_TEXT).name, False)
    assert evaluation.tokens > 300
    cost = evaluation.quantized
    assert cost is not None
    assert evaluation.perplexity == pytest.approx(320, rel=0.3)
    assert cost.perplexity == pytest.approx(evaluation.perplexity, rel=0.1)
    assert cost.mean_kl_divergence
    assert not evaluation.has_large_loss


def _check_that_one_method_was_run(folder: Path) -> None:
    """With the longest text; the other method has the same layers."""
    told = load_provenance(folder)
    prefill, decode = (told.of(name) for name in ("prefill", "decode"))
    [moved] = prefill.quantization_loss
    assert moved.max_abs_error
    assert (len(prefill.expected), prefill.output_quantization) == (1, (None,))
    assert decode.quantization_loss == ()
    assert (decode.expected, decode.output_quantization) == ((), ())
    assert [path.name for path in (folder / "expected").iterdir()] == ["prefill"]
    tokens = np.fromfile(folder / "inputs/prefill/0.tokens.bin", "<i8")
    assert tokens.tolist() == list(range(8))
