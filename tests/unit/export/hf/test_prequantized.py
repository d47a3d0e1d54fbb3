"""Checkpoints that are quantized already, as config.json and the headers of their weights tell."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from etdeploy.cli.main import run_cli
from etdeploy.export.hf.check import checkpoint_refusals
from etdeploy.export.hf.config import ConfigProblem
from etdeploy.export.hf.gguf import read_header
from etdeploy.export.hf.prequantized import (
    Prequantized,
    gguf_layers,
    outlook_notes,
    read_prequantized,
)
from etdeploy.export.hf.quantized_layers import QuantizedLayer
from etdeploy.export.hf.tensors import checkpoint_tensors
from tests.support.checkpoints import LLAMA, SHAPES, write_checkpoint, write_safetensors
from tests.support.facts import lacks
from tests.support.gguf_files import tensors, write_gguf
from tests.support.machine import bare_machine

Shapes = dict[str, tuple[int, ...]]
PATH = "model.layers.0.mlp.up_proj"
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True, "desc_act": False}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}
COMPRESSED = {"quant_method": "compressed-tensors", "format": "pack-quantized"}
TORCHAO = {"quant_method": "torchao", "quant_type": {}}
INT4 = {"_type": "torch.dtype", "_data": "int4"}


def _tensors(**leaves: tuple[int, ...]) -> Shapes:
    return {f"{PATH}.{leaf}": shape for leaf, shape in leaves.items()}


# Of a layer with 96 inputs and 64 outputs, in groups of 32.
GPTQ_TENSORS = _tensors(qweight=(12, 64), qzeros=(3, 8), scales=(3, 64), g_idx=(96,))
AWQ_TENSORS = _tensors(qweight=(96, 8), qzeros=(3, 8), scales=(3, 64))
PACKED_TENSORS = _tensors(weight_packed=(64, 12), weight_scale=(64, 3), weight_shape=(2,))
INTX_TENSORS = _tensors(_weight_qdata=(64, 96), _weight_scale=(64, 3), _weight_zero_point=(64, 3))
TRAINED_TENSORS = _tensors(weight=(64, 96), scales=(64, 3), zeros=(64, 3))


_TYPES = dict.fromkeys(("qweight", "qzeros", "weight_packed", "g_idx"), "I32") | {
    "weight_shape": "I64",
    "_weight_qdata": "I8",
    "_weight_zero_point": "I8",
}


def _checkpoint(
    folder: Path,
    settings: Mapping[str, Any] | None,
    tensors: Shapes,
    *,
    metadata: Mapping[str, Any] | None = None,
    data: Mapping[str, bytes] | None = None,
    types: Mapping[str, str] | None = None,
) -> Path:
    write_checkpoint(folder, quantization_config=settings)
    stated = b"".join(size.to_bytes(8, "little") for size in (64, 96))
    content = {"weight_shape": stated, **(data or {})}
    write_safetensors(
        folder / "model.safetensors",
        {**SHAPES, **tensors},
        {f"{PATH}.{leaf}": kind for leaf, kind in {**_TYPES, **(types or {})}.items()},
        {name: json.dumps(about) for name, about in (metadata or {}).items()},
        {f"{PATH}.{leaf}": each for leaf, each in content.items()},
    )
    return folder


def _intx(**changes: Any) -> dict[str, Any]:
    data = {"block_size": [1, 32], "target_dtype": INT4, **changes}
    about = {"_type": "IntxUnpackedToInt8Tensor", "_data": data}
    return {f"{PATH}.weight": about, "lm_head.weight": {"_type": "Tensor"}}


def _found(folder: Path) -> Prequantized:
    config = json.loads((folder / "config.json").read_text())
    found = read_prequantized(config, checkpoint_tensors(folder))
    assert found is not None
    return found


def _refusal(folder: Path) -> ConfigProblem:
    found = next(checkpoint_refusals(folder, 64))
    assert "Name the model that it was made from" in str(found.remedy)
    return found


_MADE: dict[str, tuple[dict[str, Any] | None, Shapes, dict[str, Any] | None]] = {
    "gptq": (GPTQ, GPTQ_TENSORS, None),
    "awq": (AWQ, AWQ_TENSORS, None),
    "compressed-tensors": (COMPRESSED, PACKED_TENSORS, None),
    "torchao": (TORCHAO, INTX_TENSORS, _intx()),
    "trained": (None, TRAINED_TENSORS, None),
}


def _made(folder: Path, name: str) -> Path:
    settings, tensors, metadata = _MADE[name]
    types = {"weight": "I8"} if name == "trained" else {}
    return _checkpoint(folder, settings, tensors, metadata=metadata, types=types)


@pytest.mark.parametrize("name", _MADE)
def test_headers_tell_how_a_layer_is_quantized(tmp_path: Path, name: str) -> None:
    folder = _made(tmp_path / "m", name)
    found = _found(folder)
    [layer] = found.layers
    assert (layer.path, layer.bits, layer.shape, layer.group_size) == (PATH, 4, (64, 96), 32)
    assert found.tensors == {n for n in checkpoint_tensors(folder).infos if n.startswith(PATH)}
    assert list(checkpoint_refusals(folder, 64)) == []
    assert found.parameter_count(checkpoint_tensors(folder).infos) == 64 * 96 + 2 * 16 * 8


def test_a_checkpoint_of_floats_is_not_quantized(tmp_path: Path) -> None:
    tensors = checkpoint_tensors(write_checkpoint(tmp_path / "m"))
    assert read_prequantized(LLAMA, tensors) is None


@pytest.mark.parametrize(
    ("settings", "facts"),
    [
        ({"quant_method": "bitsandbytes"}, ["bitsandbytes", "gptq", "awq", "torchao"]),
        ({"quant_method": "fp8"}, ["fp8"]),
        ({}, ["unknown method"]),
        ({**GPTQ, "bits": 3}, ["3 bits", "4 or 8"]),
        ({**GPTQ, "bits": 2}, ["2 bits"]),
        ({**GPTQ, "checkpoint_format": "marlin"}, ["marlin", "gptq_v2"]),
        ({**AWQ, "bits": 8}, ["8 bits"]),
        ({**AWQ, "version": "GEMV"}, ["gemv", "gemm"]),
        ({**COMPRESSED, "format": "nvfp4-pack-quantized"}, ["nvfp4-pack-quantized"]),
        ({**COMPRESSED, "sparsity_config": {"format": "sparse-24-bitmask"}}, ["sparse-24"]),
        ({**COMPRESSED, "transform_config": {"config_groups": {}}}, ["transform_config"]),
        ({**COMPRESSED, "config_groups": {"a": {"format": "mxfp4"}}}, ["mxfp4"]),
        ({"quant_method": "auto-round", "packing_format": "auto_round"}, ["auto-round"]),
    ],
)  # fmt: skip
def test_methods_that_cannot_be_read(
    tmp_path: Path, settings: dict[str, Any], facts: list[str]
) -> None:
    found = _refusal(_checkpoint(tmp_path / "m", settings, {}))
    assert not lacks(found.message, *facts)


@pytest.mark.parametrize(
    ("settings", "tensors", "facts"),
    [
        (GPTQ, {}, ["none of its tensors"]),
        (GPTQ, _tensors(qweight=(12, 64)), [PATH, "scales"]),
        (GPTQ, GPTQ_TENSORS | _tensors(qzeros=(3, 64)), ["qzeros", "[3, 64]", "[3, 8]"]),
        (GPTQ, GPTQ_TENSORS | _tensors(g_idx=(95,)), ["g_idx", "[96]"]),
        (GPTQ, GPTQ_TENSORS | _tensors(qweight=(12,)), ["qweight", "matrix"]),
        (GPTQ, _tensors(qweight=(12, 64), qzeros=(5, 8), scales=(5, 64)), ["96", "5 equal"]),
        (AWQ, AWQ_TENSORS | _tensors(scales=(3, 8)), ["scales", "[3, 64]"]),
        (AWQ, _tensors(qweight=(96, 8), scales=(3, 64)), ["qzeros"]),
        (COMPRESSED, _tensors(weight_packed=(64, 12), weight_scale=(64, 3)), ["weight_shape"]),
        (COMPRESSED, PACKED_TENSORS | _tensors(weight_packed=(64, 6)), ["2 bits"]),
        (COMPRESSED, PACKED_TENSORS | _tensors(weight_packed=(32, 12)), ["[64, 96]", "32"]),
        (COMPRESSED, PACKED_TENSORS | _tensors(weight_scale=(8, 3)), ["weight_scale", "[64, 3]"]),
        (COMPRESSED, PACKED_TENSORS | _tensors(weight_zero_point=(64, 3)), ["[8, 3]"]),
    ],
)  # fmt: skip
def test_tensors_that_are_missing_or_do_not_fit(
    tmp_path: Path, settings: dict[str, Any], tensors: Shapes, facts: list[str]
) -> None:
    found = _refusal(_checkpoint(tmp_path / "m", settings, tensors))
    assert not lacks(found.message, *facts)


@pytest.mark.parametrize(
    ("metadata", "facts"),
    [
        (_intx(block_size=None), ["blocks"]),
        (_intx(block_size=[1, 36]), ["[1, 36]"]),
        (_intx(block_size=[1, 48]), ["_weight_scale", "[64, 2]"]),
        ({f"{PATH}.weight": {"_type": "NVFP4Tensor", "_data": {}}}, ["NVFP4Tensor"]),
        ({f"{PATH}.weight": {"_data": {}}}, [PATH, "_type"]),
        ({f"{PATH}.weight": []}, [PATH]),
        ({f"{PATH}.weight": {"_type": "Int8Tensor", "_data": 5}}, ["not an object"]),
        ({f"{PATH}.weight": {"_type": "Int4Tensor", "_data": {"block_size": [1, 32]}}}, ["shape"]),
        ({f"{PATH}.weight": {"_type": "Int4Tensor",
          "_data": {"block_size": [1, 32], "shape": [64, 96]}}}, ["[64, 48]"]),
        ({f"{PATH}.weight": {"_type": "Int4TilePackedTo4dTensor",
          "_data": {"block_size": [1, 32], "shape": [64, 96]}}}, ["I8", "I32"]),
    ],
)  # fmt: skip
def test_torchaos_tensors_that_cannot_be_read(
    tmp_path: Path, metadata: dict[str, Any], facts: list[str]
) -> None:
    found = _refusal(_checkpoint(tmp_path / "m", TORCHAO, INTX_TENSORS, metadata=metadata))
    assert not lacks(found.message, *facts)


@pytest.mark.parametrize(
    ("tensors", "fact"),
    [
        (_tensors(_weight_qdata=(8, 1, 32, 4)), "_weight_scale_and_zero"),
        (_tensors(_weight_qdata=(7, 1, 32, 4), _weight_scale_and_zero=(32, 64, 2)), "[7, 1, 32"),
        (_tensors(_weight_qdata=(8, 1, 32, 4), _weight_scale_and_zero=(2, 64, 2)), "[2, 64, 2]"),
    ],
)
def test_tiles_that_do_not_fit(tmp_path: Path, tensors: Shapes, fact: str) -> None:
    data = {"block_size": [1, 32], "shape": [64, 96]}
    about = {f"{PATH}.weight": {"_type": "Int4TilePackedTo4dTensor", "_data": data}}
    folder = tmp_path / "m"
    found = _refusal(
        _checkpoint(folder, TORCHAO, tensors, metadata=about, types={"_weight_qdata": "I32"})
    )
    assert fact in found.message


@pytest.mark.parametrize(
    ("name", "leaf"),
    [("gptq", "qweight"), ("gptq", "qzeros"), ("awq", "qweight"),
     ("compressed-tensors", "weight_packed"), ("torchao", "_weight_qdata")],
)  # fmt: skip
def test_values_of_another_type_are_refused(tmp_path: Path, name: str, leaf: str) -> None:
    settings, tensors, metadata = _MADE[name]
    folder = _checkpoint(tmp_path / "m", settings, tensors, metadata=metadata, types={leaf: "F16"})
    assert not lacks(_refusal(folder).message, f"{PATH}.{leaf}", "F16")


@pytest.mark.parametrize(
    ("name", "leaf", "content", "fact"),
    [
        ("gptq", "g_idx", [at // 32 for at in range(96)], "carried over"),
        ("gptq", "g_idx", [at % 3 for at in range(96)], "desc_act"),
        ("torchao", "_weight_zero_point", [0] * 192, "carried over"),
        ("torchao", "_weight_zero_point", [1] * 192, "carried over"),
        ("trained", "zeros", [0] * 192, "carried over"),
        ("trained", "zeros", [8] * 192, "carried over"),
    ],
)
def test_small_tensors_tell_what_becomes_of_a_layer(
    tmp_path: Path, name: str, leaf: str, content: list[int], fact: str
) -> None:
    settings, tensors, metadata = _MADE[name]
    size = 1 if name == "torchao" else 4
    data = {leaf: b"".join(value.to_bytes(size, "little") for value in content)}
    types = {"weight": "I8"} if name == "trained" else {}
    folder = _checkpoint(
        tmp_path / "m", settings, tensors, metadata=metadata, data=data, types=types
    )
    assert fact in " ".join(outlook_notes(_found(folder), "8da4w"))


def test_packed_weights_without_settings_are_refused(tmp_path: Path) -> None:
    found = _refusal(_checkpoint(tmp_path / "m", None, GPTQ_TENSORS))
    assert not lacks(found.message, f"{PATH}.qweight", "quantization_config")


def test_torchaos_scales_of_inputs_are_refused(tmp_path: Path) -> None:
    tensors = INTX_TENSORS | _tensors(_weight_act_pre_scale=(96,))
    found = _refusal(_checkpoint(tmp_path / "m", TORCHAO, tensors, metadata=_intx()))
    assert "act_pre_scale" in found.message


def _layer(**changes: Any) -> QuantizedLayer:
    values = {"path": PATH, "layout": "gptq", "kind": "GPTQ", "bits": 4, "shape": (64, 96)}
    return QuantizedLayer(**{**values, "groups": 3, "parts": {}, "symmetric": True, **changes})


@pytest.mark.parametrize(
    ("changes", "scheme", "facts"),
    [
        ({}, "8da4w", ["GPTQ, 4 bits in groups of 32", "carried over"]),
        ({"groups": 1}, "8da4w", ["carried over"]),
        ({"groups": 1}, "8da8w", ["carried over"]),
        ({"groups": 1, "bits": 8}, "8da4w", ["carried over"]),
        ({"symmetric": None}, "8da4w", ["carried over"]),
        ({}, "8da8w", ["quantized again, with 8da8w", "groups"]),
        ({"bits": 8}, "8da4w", ["quantized again, with 8da8w", "4 bits"]),
        ({"groups": 6}, "8da4w", ["quantized again, with 8da8w", "groups of 16"]),
        ({"symmetric": False}, "8da4w", ["carried over"]),
        ({"symmetric": False, "groups": 1}, "8da8w", ["quantized again", "zero points"]),
        ({"symmetric": False, "groups": 6}, "8da4w", ["quantized again", "groups of 16"]),
        ({"symmetric": False, "in_order": False}, "8da4w", ["quantized again", "desc_act"]),
        ({"bits": 3}, "8da4w", ["carried over"]),
        ({"in_order": False}, "8da4w", ["quantized again, with 8da8w", "desc_act"]),
        ({"layout": "float"}, "8da4w", ["quantized again, with 8da8w", "floats"]),
        ({"layout": "table"}, "8da4w", ["quantized again, with 8da8w", "a table"]),
        ({}, None, ["unpacked to floats", "8da4w"]),
        ({}, "int8_dynamic", ["quantized again with int8_dynamic"]),
    ],
)
def test_what_becomes_of_a_layer(
    changes: dict[str, Any], scheme: str | None, facts: list[str]
) -> None:
    notes = list(outlook_notes(Prequantized((_layer(**changes),), frozenset()), scheme))
    assert len(notes) == 2
    assert not lacks(" ".join(notes), *facts)


def test_the_plan_says_what_becomes_of_the_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bare_machine(tmp_path, monkeypatch)
    monkeypatch.setattr("etdeploy.graph.preflight.check_needs", lambda _: None)
    folder = _made(tmp_path / "m", "awq")
    assert run_cli(["plan", "--recipe", "llm-xnnpack", "--model", str(folder)]) == 0
    assert not lacks(capsys.readouterr().out, "AWQ, 4 bits", "groups of 32", "carried over")


@pytest.mark.parametrize(
    ("kinds", "facts"),
    [
        ({}, ["15 layers in Q4_1, 4 bits in groups of 32", "15 layers will be carried over"]),
        (
            {"output.weight": "Q8_0", "blk.0.ffn_down.weight": "F16"},
            ["13 layers in Q4_1", "1 layer in Q8_0", "13 layers will be", "these have 8"],
        ),
    ],
)
def test_layers_of_a_gguf_file(tmp_path: Path, kinds: dict[str, str], facts: list[str]) -> None:
    """Two blocks of seven matrices, and the output layer, which may be the embeddings."""
    weights = tensors()
    if "output.weight" in kinds:
        weights["output.weight"] = weights["token_embd.weight"]
    file = write_gguf(tmp_path / "m.gguf", "Q4_1", weights=weights, kinds=kinds)
    found = gguf_layers(read_header(file))
    assert found is not None
    assert not lacks(" ".join(outlook_notes(found, "8da4w")), *facts)


def test_a_gguf_file_of_floats_has_no_quantized_layers(tmp_path: Path) -> None:
    assert gguf_layers(read_header(write_gguf(tmp_path / "m.gguf", "F16"))) is None
