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


def test_the_program_is_the_same_byte_for_byte() -> None:
    # In one process: what is shortened leaves ExecuTorch's tables as they were. The second time
    # as with another release, whose parts might be missing.
    arguments = ("-m", "tests.support.lowering_run", "Llama", "8da4w")
    outcome = process.run(process.Request((sys.executable, *arguments), cwd=ROOT))
    assert outcome.ok, outcome.stderr[-3000:]
    told: dict[str, Any] = json.loads(outcome.stdout.splitlines()[-1])
    fast, whole = told["fast"], told["whole"]
    assert fast["digest"] == whole["digest"]
    assert fast["decompositions"] < whole["decompositions"]
    for repeated in ("traces", "operators", "compiled"):
        assert fast[repeated] <= whole[repeated] / 2, repeated
