"""What of a recipe decides the program."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Any

import pytest

from etdeploy.core.errors import RecipeError
from etdeploy.export.derive import export_spec
from etdeploy.export.spec import TESTED_VERSIONS, CodeReference, ExportSpec
from etdeploy.recipe.load import load_recipe
from etdeploy.recipe.model import Recipe
from tests.support.facts import lacks


def spec_of(**recipe: Any) -> ExportSpec:
    return export_spec(Recipe.model_validate(recipe))


def test_sizes_with_their_places_in_the_recipe(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("")
    path = tmp_path / "recipe.yaml"
    path.write_text(
        "model: {python: model.py:make}\n"
        "benchmark:\n"
        "  inputs: model.py:inputs\n"
        "  sizes:\n"
        "    short: {tokens: 16, x.0: 2}\n"
    )
    loaded = load_recipe(str(path))
    spec = export_spec(loaded.recipe, loaded.places)
    assert spec.sizes == {"short": {"tokens": 16, "x.0": 2}}
    assert str(spec.inputs) == "model.py:inputs"
    assert spec.place("benchmark", "sizes", "short", "x.0") == f"{path}:5:25"
    assert spec.named_files() == dict.fromkeys(("factory", "inputs"), f"{tmp_path}/model.py")
    assert spec.functions() == {"model.python": spec.python, "benchmark.inputs": spec.inputs}


def test_overrides_keep_their_order_and_places(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(
        "model: {example: mlp}\n"
        "export:\n"
        "  backend: qnn\n"
        "  quantization: int8_static\n"
        "  overrides: {b.*: 16a8w, left_out: null, a: 8a4w}\n"
    )
    loaded = load_recipe(str(path))
    spec = export_spec(loaded.recipe, loaded.places)
    assert spec.overrides == (("b.*", "16a8w"), ("a", "8a4w"))
    assert spec.place("export", "overrides", "b.*") == f"{path}:5:15"


def test_inputs_of_a_finished_program_cannot_be_made() -> None:
    benchmark = {"sizes": {"a": {"input_0.0": 2}}, "inputs": "package.module:make"}
    with pytest.raises(RecipeError, match=r"^benchmark\.inputs: "):
        spec_of(model={"program": "/here/model.pte"}, benchmark=benchmark)


def test_a_factory_in_a_module() -> None:
    spec = spec_of(model={"python": "package.module:make", "weights": "/here/w.pt"})
    assert spec.python == CodeReference(module="package.module", name="make")
    assert spec.source == "package.module:make"
    assert spec.named_files() == {"weights": "/here/w.pt"}


def test_calibration_is_code_of_the_user_too() -> None:
    spec = spec_of(
        model={"example": "mlp"},
        export={"quantization": "int8_static", "calibration": "/here/data.py:samples"},
    )
    assert spec.runs_user_code
    assert spec.named_files() == {"calibration": "/here/data.py"}


def test_a_finished_program_takes_no_export_section() -> None:
    spec = spec_of(model={"program": "/here/m.pte"}, export={"backend": "portable", "seed": 4})
    assert spec == ExportSpec(program="/here/m.pte", seed=4)
    assert spec.source == "m.pte"


def test_what_a_scheme_does_not_use_is_left_out() -> None:
    plain = spec_of(model={"example": "mlp"})
    grouped = spec_of(model={"example": "mlp"}, export={"group_size": 64, "quantization": "8da4w"})
    assert (plain.group_size, grouped.group_size) == (None, 64)
    blocks = {"backend": "qnn", "quantization": "16a4w_block", "group_size": 96}
    assert spec_of(model={"example": "mlp"}, export=blocks).group_size == 96
    assert plain.soc is None
    assert spec_of(model={"example": "mlp"}, export={"backend": "qnn"}).soc == "auto"


def test_the_rounding_is_part_of_what_is_exported() -> None:
    export = {"quantization": "8da4w", "rounding": "gptq"}
    assert (
        spec_of(model={"hf": "org/model"}, export={"quantization": "8da4w"}).rounding == "nearest"
    )
    asked = spec_of(model={"hf": "org/model"}, export=export)
    assert asked.model_dump(mode="json")["rounding"] == "gptq"
    assert asked.calibration_text


@pytest.mark.parametrize(
    ("model", "export", "embeddings"),
    [
        ({"hf": "org/model"}, {"quantization": "8da4w"}, "8w"),
        ({"hf": "org/model"}, {"quantization": "8da8w"}, "8w"),
        ({"hf": "org/model"}, {"quantization": "8da4w", "embeddings": "4w"}, "4w"),
        ({"hf": "org/model"}, {"quantization": "8da4w", "embeddings": "none"}, None),
        ({"hf": "org/model"}, {"quantization": "8da4w", "backend": "vulkan"}, None),
        ({"hf": "org/model"}, {"quantization": "int8_dynamic"}, None),
        ({"hf": "org/model"}, {}, None),
        ({"hf": "org/model"}, {"embeddings": "8w"}, "8w"),
        ({"example": "transformer"}, {"quantization": "8da4w"}, None),
        ({"example": "transformer"}, {"embeddings": "4w"}, "4w"),
    ],
)
def test_embeddings_have_8_bits_beside_quantized_layers_of_a_language_model(
    model: dict[str, Any], export: dict[str, Any], embeddings: str | None
) -> None:
    assert spec_of(model=model, export=export).embeddings == embeddings


def test_a_part_with_groups_of_its_own() -> None:
    parts = {"head": {"quantization": "8da4w", "group_size": 64}, "body": "none", "rest": None}
    spec = spec_of(model={"example": "mlp"}, export={"quantization": "8da8w", "overrides": parts})
    assert spec.overrides == (("head", "8da4w"), ("body", "none"))
    assert spec.override_groups == {"head": 64}
    assert spec.group_size == 32


@pytest.mark.parametrize("text", ["model.py", "model.py:", ":make", "model.py:not a name"])
def test_a_reference_without_a_function(text: str) -> None:
    with pytest.raises(RecipeError) as caught:
        spec_of(model={"python": text})
    assert not lacks(
        caught.value, f"model.python: {text!r} ", "file.py:function", "package.module:function"
    )


def test_the_tested_versions_are_those_that_the_extra_installs() -> None:
    required = importlib.metadata.requires("etdeploy") or []
    for name, version in TESTED_VERSIONS.items():
        assert any(r.startswith(f"{name}=={version};") for r in required), (name, required)
