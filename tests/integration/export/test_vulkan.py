"""What is quantized for Vulkan is what its integer operators compute right."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.export import nightly_except, run_support, selected

pytestmark = pytest.mark.integration

LINEAR = "addmm [1, 8, 16]"
# By the name of a model of tests/support/vulkan_int8.py: what is fused, with its first operand.
FUSED = {
    "sum": ["add [1, 8, 16]", LINEAR, LINEAR, LINEAR],
    "sum_of_rows": ["addmm [1, 1, 16]", LINEAR, LINEAR],
    "weighted_sum": ["addmm [8, 16]"] * 3,
    "product": ["addmm [8, 16]"] * 3,
    "batch_of_rows": ["addmm [15, 16]"],
    "one_batch_of_rows": ["addmm [1, 5, 16]"],
    "batch_of_images": [],
    "image": ["convolution [1, 4, 8, 8]"],
    "signal": [],
}


_models = pytest.mark.parametrize("model", nightly_except(FUSED, "sum", "batch_of_rows", "image"))


@pytest.fixture(scope="module")
def reports(request: pytest.FixtureRequest) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = run_support(
        "vulkan_int8", *sorted(selected(request, "model"))
    )
    return found


@_models
def test_only_what_is_right_becomes_an_integer_operator(
    reports: dict[str, dict[str, Any]], model: str
) -> None:
    assert reports[model]["fused"] == FUSED[model]


@_models
def test_the_quantized_model_computes_the_same(
    reports: dict[str, dict[str, Any]], model: str
) -> None:
    assert reports[model]["same_shape"]
    assert reports[model]["error"] < 0.03
