"""What an export says of a quantized model: its loss, its calibration, and what stays in floats."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.export import run_python

pytestmark = pytest.mark.integration

_CALIBRATIONS = (
    "fitting", "bytes_of_pixels", "zeros", "undefined", "infinite", "empty", "other_shape",
    "other_type", "array", "two",
)  # fmt: skip
_STATIC, _DYNAMIC = {"quantization": "int8_static"}, {"quantization": "int8_dynamic"}
CASES: dict[str, dict[str, Any]] = {
    **{name: {"python": "image", "calibration": name, **_STATIC} for name in _CALIBRATIONS},
    "dark": {"python": "dark", "calibration": "bytes_of_pixels", **_STATIC},
    "too_long": {"python": "lengths", "calibration": "too_long", **_STATIC},
    "undefined_example": {"python": "undefined_example", **_STATIC},
    "conv1d": {"python": "conv1d", **_DYNAMIC},
    "conv1d-vulkan": {"python": "conv1d", "backend": "vulkan", **_STATIC},
    "cell": {"python": "cell", **_DYNAMIC},
    "cell-static": {"python": "cell", **_STATIC},
    "positions": {"python": "positions", **_STATIC},
    "partly": {"python": "partly", **_DYNAMIC},
    # Its input is called `input`, and it is rewritten before it is quantized.
    "sequential": {"example": "mlp", "rewrites": ("views",), **_STATIC},
    "floats": {"python": "image", "quantization": "none"},
    "dynamic": {"python": "image", **_DYNAMIC},
}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What each case gives, all in one process."""
    result = tmp_path_factory.mktemp("quantized") / "result.json"
    run_python("-m", "tests.support.quantized_models", str(result), json.dumps(CASES))
    told: dict[str, Any] = json.loads(result.read_text())
    return told


def test_the_loss_against_the_unquantized_model_is_measured(found: dict[str, Any]) -> None:
    scores, best = found["fitting"]["loss"]
    assert scores["name"] == "scores"
    assert scores["cosine_similarity"] > 0.99
    assert scores["sqnr_db"] > 17
    assert 0 < scores["max_abs_error"] < 0.1
    assert (best["name"], best["cosine_similarity"], best["equal_percent"]) == ("best", None, 100)
    assert not any("unquantized" in note for note in found["fitting"]["notes"])
    assert found["dynamic"]["loss"][0]["sqnr_db"] > 17
    assert found["floats"]["loss"] == []
    assert found["sequential"]["loss"][0]["sqnr_db"] > 17


def test_arithmetic_on_integers_stays_in_integers(found: dict[str, Any]) -> None:
    [output] = found["positions"]["loss"]
    assert output["cosine_similarity"] > 0.99


def test_a_high_loss_is_a_warning_that_names_the_calibration(found: dict[str, Any]) -> None:
    scores, _ = found["bytes_of_pixels"]["loss"]
    assert scores["sqnr_db"] < 14
    [warning] = [note for note in found["bytes_of_pixels"]["notes"] if "unquantized" in note]
    for fact in ("scores (cosine ", "SQNR ", "calibration inputs", "x is ", "to 255", "to 0.99"):
        assert fact in warning
    scores, _ = found["zeros"]["loss"]
    assert scores["cosine_similarity"] < 0.99
    [warning] = [note for note in found["zeros"]["notes"] if "unquantized" in note]
    assert "0 to 0" in warning


def test_a_high_loss_of_a_constant_example_blames_the_example(found: dict[str, Any]) -> None:
    [warning] = [note for note in found["dark"]["notes"] if "unquantized" in note]
    assert "all values of x are equal" in warning
    assert "Preprocess" not in warning


WRONG = {
    "undefined": ("calibration input 1", "192 NaN among the 192 values of x"),
    "infinite": ("calibration input 0", "192 infinite ones among the 192 values of x"),
    "empty": ("calibration input 0", "[0, 3, 8, 8] for x, not torch.float32 [1, 3, 8, 8]"),
    "other_shape": ("calibration input 0", "[1, 8, 8, 3] for x, not torch.float32 [1, 3, 8, 8]"),
    "other_type": ("calibration input 0", "torch.uint8 [1, 3, 8, 8] for x, not torch.float32"),
    "array": ("calibration input 0", "ndarray for x, not torch.float32 [1, 3, 8, 8]"),
    "two": ("calibration input 0", "the model takes the inputs x"),
    "too_long": ("calibration input 1", "[0, 4] for input, not torch.float32 [1 to 8, 4]"),
    "undefined_example": ("the example input", "4 NaN among the 4 values of input"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_calibration_input_that_does_not_fit_is_refused(found: dict[str, Any], name: str) -> None:
    failure = found[name]["failure"]
    assert failure["kind"] == "calibration"
    for fact in WRONG[name]:
        assert fact in failure["message"]
    if name != "undefined_example":
        assert f"of quantized.py:{name}" in failure["message"]
        assert "torch.float32" in failure["remedy"]
        assert failure["file"] == "export.calibration"


@pytest.mark.parametrize(
    ("name", "layer", "remedy"),
    [
        ("conv1d", "conv1d (1 x)", "--set export.quantization=int8_static"),
        ("conv1d-vulkan", "conv1d (1 x)", "--set export.backend=xnnpack quantizes"),
        ("cell", "lstm_cell (1 x)", "--set export.quantization=none"),
        ("cell-static", "lstm_cell (1 x)", "--set export.quantization=none"),
    ],
)
def test_a_scheme_that_quantizes_nothing_is_refused(
    found: dict[str, Any], name: str, layer: str, remedy: str
) -> None:
    failure = found[name]["failure"]
    assert failure["kind"] == "quantization"
    assert "quantizes nothing" in failure["message"]
    assert layer in failure["message"]
    assert remedy in failure["remedy"]


def test_layers_that_stay_in_floats_are_named(found: dict[str, Any]) -> None:
    assert "int8_dynamic leaves layers in floats: conv1d (1 x)." in found["partly"]["notes"]
