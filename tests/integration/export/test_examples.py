"""Every bundled example with every scheme is exported and gives the expected outputs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from etdeploy.program.folder import TensorFile, load_provenance
from etdeploy.program.inspect import inspect_file
from tests.support.export import (
    SMALL,
    assert_exported,
    nightly_except,
    run_exported,
    selected,
    spec_of,
)

pytestmark = pytest.mark.integration

# What lowers to other backends has tests of its own.
_SMOKE, _SMOKE_BACKENDS = ("mlp",), ("vulkan-8da4w", "coreml")
EXAMPLES = nightly_except(SMALL, *_SMOKE)
SCHEMES = ("none", "int8_static", "int8_dynamic", "8da4w")

# How far ExecuTorch's outputs may be from the eager ones. XNNPACK computes in other integers than
# the quantized model does eagerly, so a rounding now and then goes the other way.
TOLERANCES = {
    "none": (1e-4, 0.999999),
    "int8_static": (0.2, 0.998),
    "int8_dynamic": (0.1, 0.999),
    "8da4w": (0.1, 0.999),
}


@dataclass(frozen=True)
class Exported:
    """Program folders by name, and what ExecuTorch's runtime made of them."""

    folders: dict[str, Path]
    distances: dict[str, list[dict[str, Any]]]


def _recipes(examples: Iterable[str], backends: Iterable[str]) -> dict[str, dict[str, Any]]:
    recipes: dict[str, dict[str, Any]] = {}
    for name in examples:
        model: dict[str, Any] = {"example": name, "arguments": SMALL[name]}
        recipes[f"{name}-portable"] = {"model": model, "export": {"backend": "portable"}}
        for scheme in SCHEMES:
            recipes[f"{name}-{scheme}"] = {"model": model, "export": {"quantization": scheme}}
    mlp, convnet, transformer = (
        {"example": name, "arguments": SMALL[name]} for name in ("mlp", "convnet", "transformer")
    )
    # The last layer of the mlp has 10 outputs, which are not a multiple of 4.
    for name, model, backend, scheme in (
        ("convnet-8da4w", convnet, "xnnpack", "8da4w"),
        ("transformer-none", transformer, "xnnpack", "none"),
        ("vulkan", mlp, "vulkan", "fp16"),
        ("vulkan-8da4w", mlp, "vulkan", "8da4w"),
        ("vulkan-int8_static", convnet, "vulkan", "int8_static"),
        ("coreml", mlp, "coreml", "fp16"),
    ):
        if backend == "xnnpack" or name in backends:
            recipes[name] = {"model": model, "export": {"backend": backend, "quantization": scheme}}
    return recipes


@pytest.fixture(scope="module")
def all_exported(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Exported:
    examples = sorted(selected(request, "example") | set(_SMOKE))
    root = tmp_path_factory.mktemp("examples")
    backends = selected(request, "backend") | set(_SMOKE_BACKENDS)
    specs = {name: spec_of(recipe) for name, recipe in _recipes(examples, backends).items()}
    assert_exported(root, specs)
    runnable = [name for name in specs if not name.startswith(("vulkan", "coreml"))]
    return Exported({name: root / name for name in specs}, run_exported(root, runnable))


@pytest.mark.parametrize("scheme", ["portable", *SCHEMES])
@pytest.mark.parametrize("example", EXAMPLES)
def test_the_runtime_gives_the_expected_outputs(
    all_exported: Exported, example: str, scheme: str
) -> None:
    found = all_exported.distances[f"{example}-{scheme}"]
    error, cosine = TOLERANCES["none" if scheme == "portable" else scheme]
    assert len(found) == 1
    assert found[0]["max_abs_error"] <= error
    assert found[0]["cosine_similarity"] >= cosine


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("example", EXAMPLES)
def test_xnnpack_takes_what_computes(all_exported: Exported, example: str, scheme: str) -> None:
    details = load_provenance(all_exported.folders[f"{example}-{scheme}"]).details
    operators = details["delegation"]["operators"]
    outside = {name for name, count in operators.items() if count["undelegated"]}
    # Gathers and norms, which XNNPACK does not have, and shuffling of the rotary positions.
    known = {
        "aten_embedding_default",
        "aten_native_layer_norm_default",
        "aten_mean_dim",
        "aten_split_with_sizes_copy_default",
    }
    assert outside <= known
    assert details["delegation"]["delegated_nodes"] > details["delegation"]["undelegated_nodes"]


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_program_has_the_delegates_that_the_export_counted(
    all_exported: Exported, example: str
) -> None:
    folder = all_exported.folders[f"{example}-int8_static"]
    (method,) = inspect_file(folder / "program.pte").methods
    counted = load_provenance(folder).details["delegation"]["partitions"]
    assert [d.backend_id for d in method.delegates] == ["XnnpackBackend"] * counted
    portable = inspect_file(all_exported.folders[f"{example}-portable"] / "program.pte")
    assert portable.backend_ids == ()


@pytest.mark.parametrize("scheme", ["int8_static", "int8_dynamic", "8da4w"])
@pytest.mark.parametrize("example", EXAMPLES)
def test_quantization_shrinks_the_program_and_tells_its_damage(
    all_exported: Exported, example: str, scheme: str
) -> None:
    folder = all_exported.folders[f"{example}-{scheme}"]
    plain = load_provenance(all_exported.folders[f"{example}-none"])
    provenance = load_provenance(folder)
    assert provenance.details["bytes"]["program.pte"] < 1.1 * plain.details["bytes"]["program.pte"]
    (damage,) = provenance.quantization_loss
    assert damage.max_abs_error
    assert damage.max_abs_error < 1
    assert damage.cosine_similarity
    assert damage.cosine_similarity > 0.95
    assert plain.quantization_loss == ()


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_step_of_quantized_outputs_is_recorded(all_exported: Exported, example: str) -> None:
    import numpy as np

    folder = all_exported.folders[f"{example}-int8_static"]
    provenance = load_provenance(folder)
    (known,) = provenance.output_quantization
    if example == "encoder":  # ends with a norm, which stays in floats
        assert known is None
        return
    assert known is not None
    assert known.dtype == "int8"
    (expected,) = provenance.expected
    assert isinstance(expected, TensorFile)
    values = np.frombuffer((folder / expected.path).read_bytes(), dtype=np.float32)
    integers = values / known.scale + known.zero_point
    assert np.abs(integers - np.rint(integers)).max() < 1e-3
    assert -128 <= np.rint(integers).min() < np.rint(integers).max() <= 127


@pytest.mark.parametrize("scheme", ["none", "int8_dynamic", "8da4w"])
def test_other_outputs_have_no_step(all_exported: Exported, scheme: str) -> None:
    for example in _SMOKE:
        provenance = load_provenance(all_exported.folders[f"{example}-{scheme}"])
        assert provenance.output_quantization == (None,)


def test_notes_say_what_a_user_should_know(all_exported: Exported) -> None:
    notes = {name: load_provenance(f).notes for name, f in all_exported.folders.items()}
    assert notes["mlp-none"] == ()
    assert notes["mlp-int8_static"] == ("8 random inputs of the example set the ranges.",)
    assert notes["convnet-8da4w"] == (
        "8da4w quantized 1 linear layer; 21 convolutions stay in floats.",
    )
    *notes_of_vulkan, loss = notes["vulkan-8da4w"]
    assert notes_of_vulkan == [
        "Linear layers that stay in floats, since their input size is not a multiple of the group "
        "size 32, or their output size not of 4: 4.",
        "8da4w quantized 2 linear layers.",
    ]
    assert "cosine 0.98" in loss


@pytest.mark.parametrize(
    "backend",
    nightly_except(("vulkan", "vulkan-8da4w", "vulkan-int8_static", "coreml"), *_SMOKE_BACKENDS),
)
def test_other_backends_lower_without_their_device(all_exported: Exported, backend: str) -> None:
    identity = "CoreMLBackend" if backend == "coreml" else "VulkanBackend"
    program = inspect_file(all_exported.folders[backend] / "program.pte")
    assert program.backend_ids == (identity,)
    assert (
        load_provenance(all_exported.folders[backend]).details["delegation"]["undelegated_nodes"]
        == 0
    )


def test_a_program_folder_is_complete(all_exported: Exported) -> None:
    folder = all_exported.folders["transformer-none"]
    provenance = load_provenance(folder)
    assert [(t.dtype, t.shape) for t in provenance.inputs] == [("int64", (1, 16))]
    assert [(t.dtype, t.shape) for t in provenance.expected] == [("float32", (1, 16, 64))]
    sizes = [
        (folder / t.path).stat().st_size
        for t in (*provenance.inputs, *provenance.expected)
        if isinstance(t, TensorFile)
    ]
    assert sizes == [16 * 8, 16 * 64 * 4]
    assert (folder / "etrecord.bin").stat().st_size > 0
    # The import of ExecuTorch is shared by these exports.
    steps = {"load", "quantize", "export", "lower", "gain", "write", "try"}
    assert set(provenance.seconds) == steps
    assert {"python", "torch", "executorch", "torchao"} <= set(provenance.versions)


@pytest.mark.parametrize(
    "backend", nightly_except(("vulkan-8da4w", "vulkan-int8_static"), *_SMOKE_BACKENDS)
)
def test_vulkan_computes_in_the_scheme(all_exported: Exported, backend: str) -> None:
    program = (all_exported.folders[backend] / "program.pte").read_bytes()
    linear, convolution = b"et_vk.linear_dq8ca_q4gsw", b"et_vk.q8ta_conv2d"
    assert (linear if backend == "vulkan-8da4w" else convolution) in program
