"""A remedy that names another backend can be followed as it is printed."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest

from etdeploy.backends.registry import known_backends
from etdeploy.backends.schemes import OTHER_BACKEND
from etdeploy.core.errors import ExportError
from etdeploy.recipe.load import load_recipe
from etdeploy.recipe.model import Recipe
from etdeploy.recipe.rules.remedies import remedies_for, with_settings

TEXT = {"hf": "org/model"}
QNN: dict[str, Any] = {
    "backend": "qnn",
    "quantization": "16a4w",
    "soc": "SM8650",
    "calibration": "calibrate.py:inputs",
    "options": {"dlbc": True},
    "overrides": {"head": "16a8w"},
}


def recipe(export: dict[str, Any], model: Any = TEXT) -> Recipe:
    return Recipe.model_validate({"model": model, "export": export})


@pytest.mark.parametrize(
    "remedy",
    [
        "Look at the log, or (for another SoC: --set export.backend=xnnpack)",
        "--set export.backend=xnnpack --set export.quantization=8da8w has no groups.",
        "Lower to another: --set export.backend=portable --set export.quantization=none\nor wait.",
        "--set export.backend=portable shows what the CPU's kernels make of it.",
    ],
)
def test_only_settings_that_are_missing_are_added(remedy: str) -> None:
    own = recipe(QNN, {"example": "mlp"})
    told = with_settings(remedy, own)
    assert told.count("export.quantization=") == 1
    for words in re.split(r"--set \S+", remedy):
        assert words.strip() in told
    assert with_settings(told, own) == told


def test_a_kernel_is_left_to_the_other_backend() -> None:
    own = recipe({"generation": {"attention": "kernel", "context": 64}})
    remedy = "--set export.backend=openvino"
    assert with_settings(remedy, own) == f"{remedy} --set export.generation.attention=auto"


def test_a_small_cache_is_left_with_the_kernel_that_reads_it() -> None:
    own = recipe({"generation": {"cache": "int8"}})
    remedy = "--set export.backend=openvino"
    assert with_settings(remedy, own) == f"{remedy} --set export.generation.cache=float32"


def test_a_backend_that_takes_the_recipe_needs_nothing() -> None:
    same = "Export it for this phone: --set export.backend=qnn --set export.soc=SM8550"
    assert with_settings(same, recipe(QNN, {"example": "mlp"})) == same
    own = recipe({"backend": "vulkan", "quantization": "8da4w"})
    assert with_settings(OTHER_BACKEND, own) == OTHER_BACKEND


@pytest.mark.parametrize(
    ("backend", "scheme"),
    [(each.name, q) for each in known_backends() if each.lowering for q in each.quantizations],
)
def test_every_recipe_can_be_lowered_to_xnnpack(backend: str, scheme: str) -> None:
    given = [f"export.backend={backend}", f"export.quantization={scheme}"]
    loaded = load_recipe("xnnpack", [*given, "model.example=mlp"])
    words = shlex.split(with_settings(OTHER_BACKEND, loaded.recipe).partition(": ")[2])
    settings = [word for word in words if word != "--set"]
    assert load_recipe("xnnpack", [*given, "model.example=mlp", *settings]).recipe


def test_errors_are_completed_on_their_way() -> None:
    with pytest.raises(ExportError) as caught, remedies_for(recipe(QNN, {"example": "mlp"})):
        raise ExportError("no compiler", remedy=OTHER_BACKEND)
    assert caught.value.remedy == (
        f"{OTHER_BACKEND} --set export.quantization=none --set export.options=null "
        "--set export.overrides=null --set export.calibration=null --set export.soc=null"
    )
    with pytest.raises(ExportError) as caught, remedies_for(recipe({})):
        raise ExportError("no compiler")
    assert caught.value.remedy is None
