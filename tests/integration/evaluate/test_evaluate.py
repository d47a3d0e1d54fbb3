"""etdeploy evaluate on this machine: scores are those of the eager model."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from etdeploy.cache.workspace import Workspace
from tests.support.cli import Cli
from tests.support.export import export_workspace
from tests.support.runtime_runs import text_programs
from tests.support.session_export import LayeredModel
from tests.support.tokenizers import byte_level

pytestmark = pytest.mark.integration
__all__ = ["export_workspace", "text_programs"]


@pytest.fixture
def model(text_programs: Path) -> str:
    return str(text_programs / "session" / "program.pte")


@pytest.fixture
def cli(export_workspace: Workspace, tmp_path: Path) -> Cli:
    return Cli(export_workspace.root, tmp_path, {})


def log_probability(before: str, after: str) -> float:
    """Of a text after another one, by the eager model."""
    ids = byte_level().encode(before + after).ids
    eager, start = LayeredModel(), len(byte_level().encode(before).ids)
    total = 0.0
    for position, token in enumerate(ids[:-1]):
        logits = eager(torch.tensor([[token]]), torch.tensor([position]))[0]
        if position + 1 >= start:
            total += float(torch.log_softmax(logits, -1)[ids[position + 1]])
    return total


def test_scores_are_those_of_the_eager_model(cli: Cli, model: str) -> None:
    rows = [
        {"id": "a", "prompt": "The sky is", "choices": ["blue", "green and red"], "answer": 0},
        {"id": "b", "prompt": "The sky is", "choices": ["blue", "green and red"], "answer": 1},
        {"id": "c", "prompt": "The sky", "answer": "none", "stop": "\n", "max_new_tokens": 4},
        {"id": "d", "text": "Once upon a time"},
    ]
    (cli.folder / "tasks.jsonl").write_text("\n".join(map(json.dumps, rows)))
    told = cli.ok("evaluate", "--tasks", "tasks.jsonl", "--model", model, "--output", "out.json")
    assert "accuracy" in told.stdout
    record = json.loads((cli.folder / "out.json").read_text())
    assert record["is_complete"]
    first, second, answer, text = record["items"]
    expected = [
        log_probability("The sky is", " blue"),
        log_probability("The sky is", " green and red"),
    ]
    assert first["log_probabilities"] == pytest.approx(expected, abs=1e-4)
    assert first["tokens"] == [5, 14]
    assert first["chosen"] == second["chosen"] == expected.index(max(expected))
    assert (first["is_right"], second["is_right"]) == (True, False)
    each = [expected[0] / 4, expected[1] / 13]
    assert first["is_right_normalized"] == (each.index(max(each)) == 0)
    assert (answer["is_right"], len(answer["tokens"])) == (False, 1)
    whole = log_probability("O", "nce upon a time")
    assert text["log_probabilities"] == pytest.approx([whole], abs=1e-4)
    metrics = {each["name"]: each for each in record["metrics"]}
    assert metrics["accuracy"]["value"] == 0.5
    assert metrics["accuracy"]["standard_error"] == pytest.approx(0.5)
    assert metrics["perplexity"]["value"] == pytest.approx(math.exp(-whole / 15), rel=1e-4)
    assert metrics["bits per byte"]["value"] == pytest.approx(-whole / math.log(2) / 16, rel=1e-4)
    again = cli("evaluate", "--tasks", "tasks.jsonl", "--model", model, "--output", "out.json")
    assert (again.code, "exists" in again.stderr) == (2, True)


def test_what_was_scored_before_a_failure_is_stored(cli: Cli, model: str) -> None:
    rows = [{"text": "right"}, {"id": "long", "text": "x" * 300}]
    (cli.folder / "tasks.jsonl").write_text("\n".join(map(json.dumps, rows)))
    told = cli("evaluate", "--tasks", "tasks.jsonl", "--model", model, "--output", "out.json")
    assert told.code == 2
    assert "item long" in told.stderr
    record = json.loads((cli.folder / "out.json").read_text())
    assert (record["is_complete"], len(record["items"])) == (False, 1)
