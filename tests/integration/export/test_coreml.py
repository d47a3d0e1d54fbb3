"""A language model is lowered to Core ML on any machine that has Core ML's converter."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest

from tests.support.export import run_support

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(
        not (find_spec("coremltools") and find_spec("transformers")),
        reason="needs coremltools, which ExecuTorch brings on Linux x86_64 and macOS, and "
        "etdeploy[llm]",
    ),
]


@pytest.fixture(scope="module")
def methods(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = run_support(
        "coreml_text", str(tmp_path_factory.mktemp("coreml"))
    )
    return found


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
