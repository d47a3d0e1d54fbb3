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


@pytest.fixture(scope="module")
def found() -> dict[str, dict[str, Any]]:
    arguments = ("-m", "tests.support.lowering_run")
    outcome = process.run(process.Request((sys.executable, *arguments), cwd=ROOT))
    assert outcome.ok, outcome.stderr[-3000:]
    told: dict[str, dict[str, Any]] = json.loads(outcome.stdout.splitlines()[-1])
    return told


@pytest.mark.parametrize("case", ["Llama 8da4w", "Gemma3Text none"])
def test_the_program_is_the_same_byte_for_byte(found: dict[str, dict[str, Any]], case: str) -> None:
    assert found[case]["fast"] == found[case]["whole"]


@pytest.mark.parametrize("case", ["Llama 8da4w", "Gemma3Text none"])
def test_graphs_are_traced_again_at_most_half_as_often(
    found: dict[str, dict[str, Any]], case: str
) -> None:
    assert found[case]["fast traces"] <= found[case]["whole traces"] / 2
