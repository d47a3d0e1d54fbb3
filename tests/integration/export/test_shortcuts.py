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


def lowered(name: str, scheme: str, way: str) -> dict[str, Any]:
    """What tests/support/lowering_run.py tells, in a process of its own."""
    arguments = ("-m", "tests.support.lowering_run", name, scheme, way)
    outcome = process.run(process.Request((sys.executable, *arguments), cwd=ROOT))
    assert outcome.ok, outcome.stderr[-3000:]
    told: dict[str, Any] = json.loads(outcome.stdout.splitlines()[-1])
    return told


def test_the_program_is_the_same_byte_for_byte() -> None:
    fast, whole = (lowered("Llama", "8da4w", way) for way in ("fast", "whole"))
    assert fast["digest"] == whole["digest"]
    assert fast["traces"] <= whole["traces"] / 2
