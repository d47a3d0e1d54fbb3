"""What makes lowering faster leaves programs as they are."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

import pytest

from tests.support.export import ROOT, run_support

pytestmark = pytest.mark.integration

# Language models, each with a kind of layer, attention or cache of its own.
TEXT = ("llama=8da4w", "qwen3-kernel=8da4w", "lfm2=8da4w")
_DAILY = "xnnpack:normed=none"
OTHERS = ("xnnpack:images=int8_static", "xnnpack:signals=int8_dynamic", "portable:signals=none")

# `ETDEPLOY_TEST_ZOO=1` compares all models of the benchmarks, which takes hours.
ZOO_VARIABLE = "ETDEPLOY_TEST_ZOO"
_FACTORY = re.compile(r"^@adding_to\(\w+\)\ndef (\w+)\(", re.MULTILINE)
ZOO = [
    f"xnnpack:benchmarks/{file}:{name}"
    for file in ("programs_models.py", "programs_further.py")
    for name in _FACTORY.findall((ROOT / "benchmarks" / file).read_text())
]


def both_ways(models: Sequence[str]) -> dict[str, Any]:
    """Of each model: the digest of its program, and what was done for it.

    In one process: what is shortened leaves ExecuTorch's tables as they were. The second time as
    with another release, whose parts might be missing.
    """
    found: dict[str, Any] = run_support("lowering_run", *models)
    return found


@pytest.fixture(scope="module")
def texts() -> dict[str, Any]:
    pytest.importorskip("transformers", reason="needs etdeploy[llm]")
    return both_ways(TEXT)


@pytest.mark.nightly
@pytest.mark.parametrize("name", TEXT)
def test_the_program_of_a_text_is_the_same(texts: dict[str, Any], name: str) -> None:
    fast, whole = texts[name]["fast"], texts[name]["whole"]
    assert fast["digest"] == whole["digest"]
    for repeated in ("decompositions", "traces", "operators", "compiled"):
        assert fast[repeated] <= whole[repeated] / 2, repeated


@pytest.mark.parametrize(
    "name", [_DAILY, *(pytest.param(n, marks=pytest.mark.nightly) for n in OTHERS)]
)
def test_any_program_is_the_same_byte_for_byte(name: str) -> None:
    (found,) = both_ways([name]).values()
    fast, whole = found["fast"], found["whole"]
    assert fast["digest"] == whole["digest"]
    assert fast["rewrites"] == whole["rewrites"]
    assert fast["operators"] < 0.8 * whole["operators"]


@pytest.mark.parametrize("scheme", ["none", "int8_static", "int8_dynamic"])
@pytest.mark.parametrize("model", ZOO if os.environ.get(ZOO_VARIABLE) else ())
def test_any_model_of_the_zoo_is_lowered_to_the_same_program(model: str, scheme: str) -> None:
    (found,) = both_ways([f"{model}={scheme}"]).values()
    assert found["fast"]["digest"] == found["whole"]["digest"]
    assert "dropped" not in (found["fast"]["rewrites"] or {})


def test_checks_run_one_of_several_alike_operators_and_look_at_each() -> None:
    found = run_support("alike_operators")
    assert found["refused"] == [found["wrong"]]
    # The second tensor looks like the first; the others differ in shape, memory or type.
    assert found["run"] == [0, 2, 3, 4]
    assert found["given"] == found["wanted"]


def test_a_graph_is_sorted_as_a_copy_of_it_would_be() -> None:
    found = run_support("sorted_graphs")
    for made, wanted in found["pairs"]:
        assert made == wanted
    assert found["cycle"]
