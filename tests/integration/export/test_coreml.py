"""A language model is lowered to Core ML on any machine that has Core ML's converter."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from etdeploy.core.processes import process

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(
        not (find_spec("coremltools") and find_spec("transformers")),
        reason="needs coremltools, which ExecuTorch brings on Linux x86_64 and macOS, and "
        "etdeploy[llm]",
    ),
]

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def methods(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    folder = str(tmp_path_factory.mktemp("coreml"))
    arguments = ("-W", "ignore", "-m", "tests.support.coreml_text", folder)
    outcome = process.run(process.Request((sys.executable, *arguments), cwd=ROOT))
    assert outcome.ok, outcome.stderr[-3000:]
    told: dict[str, dict[str, Any]] = json.loads(outcome.stdout.splitlines()[-1])
    return told


def test_prompts_are_taken_in_parts_of_one_length(methods: dict[str, dict[str, Any]]) -> None:
    taken = {name: method["inputs"] for name, method in methods.items()}
    assert taken == {"prefill": [[1, 4], [1]], "decode": [[1, 1], [1]]}


@pytest.mark.parametrize("name", ["prefill", "decode"])
def test_core_ml_computes_all_but_the_writes_into_the_cache(
    methods: dict[str, dict[str, Any]], name: str
) -> None:
    # In the one layer, before the keys and values are written, and after.
    assert methods[name]["delegates"] == ["CoreMLBackend"] * 2
    # In place: with `aten::index_put` and `aten::copy_`, each token would copy the cache.
    assert methods[name]["operators"] == {"aten::index_put_": 2}
