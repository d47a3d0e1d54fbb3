"""What makes the lowering of language models faster leaves their programs as they are."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from etdeploy.core.processes import process

pytest.importorskip("transformers", reason="needs etdeploy[llm]")
pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[3]
# Each with a kind of layer, attention or cache of its own.
MODELS = {
    "llama": "8da4w",
    "qwen3-kernel": "8da4w",
    "lfm2": "8da4w",
}


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    """Of each model, both ways: the digest of its program, and what was done for it."""
    # In one process: what is shortened leaves ExecuTorch's tables as they were. The second time
    # as with another release, whose parts might be missing.
    models = (f"{name}={scheme}" for name, scheme in MODELS.items())
    arguments = ("-m", "tests.support.lowering_run", *models)
    outcome = process.run(process.Request((sys.executable, *arguments), cwd=ROOT))
    assert outcome.ok, outcome.stderr[-3000:]
    found: dict[str, Any] = json.loads(outcome.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("name", MODELS)
def test_the_program_is_the_same_byte_for_byte(told: dict[str, Any], name: str) -> None:
    fast, whole = told[name]["fast"], told[name]["whole"]
    assert fast["digest"] == whole["digest"]
    for repeated in ("decompositions", "traces", "operators", "compiled"):
        assert fast[repeated] <= whole[repeated] / 2, repeated


def test_checks_run_one_of_several_alike_operators_and_look_at_each() -> None:
    arguments = ("-m", "tests.support.alike_operators")
    outcome = process.run(process.Request((sys.executable, *arguments), cwd=ROOT))
    assert outcome.ok, outcome.stderr[-3000:]
    found: dict[str, Any] = json.loads(outcome.stdout.splitlines()[-1])
    assert found["refused"] == [found["wrong"]]
    # The second tensor looks like the first; the others differ in shape, memory or type.
    assert found["run"] == [0, 2, 3, 4]
    assert found["given"] == found["wanted"]
