"""Layers that a checkpoint has quantized, as its settings and the headers of its weights tell.

Each method finds its layers by the names of their tensors, and compares the shapes.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from etdeploy.export.hf.tensors import SavedTensor, Tensors

Settings = Mapping[str, Any]
_WORD_BITS = 32
_WIDTHS = (4, 8)


class UnreadableError(Exception):
    """Why quantized weights cannot be read, in a sentence for the user."""


@dataclass(frozen=True)
class QuantizedLayer:
    """The weight of a layer as its checkpoint has it.

    Attributes:
        path: Of the layer, as its tensors are named.
        layout: How the values are packed; the worker has a function for each.
        kind: Of the format, in messages.
        bits: Of each value.
        shape: Of the weight, (outputs, inputs).
        groups: How many scales each output has.
        parts: The names of its tensors by what they are: `values`, `scales`, `zeros`, `index`.
        symmetric: Whether it has no zero points; None where the settings do not say.
        in_order: Whether a group's inputs are neighbours.
    """

    path: str
    layout: str
    kind: str
    bits: int
    shape: tuple[int, int]
    groups: int
    parts: Mapping[str, str]
    symmetric: bool | None = None
    in_order: bool = True

    @property
    def group_size(self) -> int:
        """Inputs that share a scale."""
        return self.shape[1] // self.groups


def _each(tensors: Mapping[str, SavedTensor], leaf: str) -> Iterator[tuple[str, SavedTensor]]:
    """The paths of layers with a tensor of a name, and the tensor."""
    for name, info in tensors.items():
        path, _, last = name.rpartition(".")
        if last == leaf:
            yield path, info


def _part(tensors: Mapping[str, SavedTensor], path: str, leaf: str) -> SavedTensor:
    name = f"{path}.{leaf}"
    if name not in tensors:
        raise UnreadableError(f"{path} is quantized, and its tensor {leaf} is missing")
    return tensors[name]


def _require_type(path: str, leaf: str, info: SavedTensor, types: tuple[str, ...]) -> None:
    if types and info.dtype not in types:
        raise UnreadableError(f"{path}.{leaf} is of {info.dtype}, and not of {' or '.join(types)}")


def _require_shape(
    path: str, leaf: str, info: SavedTensor, shape: tuple[int, ...], *types: str
) -> None:
    _require_type(path, leaf, info, types)
    if info.shape != shape:
        raise UnreadableError(
            f"{path}.{leaf} is {list(info.shape)}, and its other tensors need {list(shape)}"
        )


def _matrix(path: str, leaf: str, info: SavedTensor, *types: str) -> tuple[int, int]:
    _require_type(path, leaf, info, types)
    if len(info.shape) != 2 or 0 in info.shape:
        raise UnreadableError(f"{path}.{leaf} is {list(info.shape)}, and not a matrix")
    return info.shape[0], info.shape[1]


def _whole_groups(path: str, inputs: int, groups: int) -> None:
    if inputs % groups:
        raise UnreadableError(f"{path} has {inputs} inputs, which are not {groups} equal groups")


def _in_order(infos: Mapping[str, SavedTensor], path: str, leaf: str, groups: int) -> bool:
    """Whether the group of each input, int32, is that of its neighbours in equal numbers."""
    info = infos.get(f"{path}.{leaf}")
    if info is None:
        return True
    stated, inputs = array("i", info.read_bytes()), info.shape[0]
    return inputs % groups == 0 and all(
        group == at // (inputs // groups) for at, group in enumerate(stated)
    )


def _is_zero(infos: Mapping[str, SavedTensor], name: str) -> bool:
    """Whether there are no zero points, or none that is not 0."""
    data = infos[name].read_bytes() if name in infos else b""
    return data.count(0) == len(data)


def _width(settings: Settings, key: str, widths: tuple[int, ...] = _WIDTHS) -> int:
    bits = settings.get(key)
    if isinstance(bits, int) and bits in widths:
        return bits
    allowed = " or ".join(map(str, widths))
    raise UnreadableError(f"its weights have {bits} bits ({key}), and only {allowed} can be read")


def _check_gptq(settings: Settings) -> None:
    _width(settings, "bits")
    layout = settings.get("checkpoint_format") or "gptq"
    if layout not in ("gptq", "gptq_v2"):
        raise UnreadableError(
            f"its weights are packed for one kernel (checkpoint_format {layout}), and only gptq "
            "and gptq_v2 can be read"
        )


def _gptq(settings: Settings, tensors: Tensors) -> Iterator[QuantizedLayer]:
    """Values packed along the inputs: qweight (inputs / n, outputs), scales (groups, outputs)."""
    bits = _width(settings, "bits")
    per_word = _WORD_BITS // bits
    layout = "gptq_v2" if settings.get("checkpoint_format") == "gptq_v2" else "gptq"
    for path, packed in _each(tensors.infos, "qweight"):
        rows, outputs = _matrix(path, "qweight", packed, "I32")
        inputs = rows * per_word
        scales = _part(tensors.infos, path, "scales")
        groups, _ = _matrix(path, "scales", scales)
        _require_shape(path, "scales", scales, (groups, outputs))
        zeros = _part(tensors.infos, path, "qzeros")
        _require_shape(path, "qzeros", zeros, (groups, outputs // per_word), "I32")
        parts = {"values": "qweight", "scales": "scales", "zeros": "qzeros"}
        if f"{path}.g_idx" in tensors.infos:
            _require_shape(path, "g_idx", tensors.infos[f"{path}.g_idx"], (inputs,), "I32")
            parts["index"] = "g_idx"
        else:
            _whole_groups(path, inputs, groups)
        yield QuantizedLayer(
            path, layout, "GPTQ", bits, (outputs, inputs), groups, _named(path, parts),
            symmetric=settings.get("sym"), in_order=_in_order(tensors.infos, path, "g_idx", groups),
        )  # fmt: skip


def _check_awq(settings: Settings) -> None:
    _width(settings, "bits" if "bits" in settings else "w_bit", (4,))
    layout = str(settings.get("version") or settings.get("format") or "gemm").lower()
    if layout != "gemm":
        raise UnreadableError(
            f"its weights are packed for one kernel (version {layout}), and only gemm can be read"
        )


def _awq(settings: Settings, tensors: Tensors) -> Iterator[QuantizedLayer]:
    """Values packed along the outputs: qweight (inputs, outputs / 8), scales (groups, outputs)."""
    for path, packed in _each(tensors.infos, "qweight"):
        inputs, words = _matrix(path, "qweight", packed, "I32")
        outputs = words * 8
        scales = _part(tensors.infos, path, "scales")
        groups, _ = _matrix(path, "scales", scales)
        _require_shape(path, "scales", scales, (groups, outputs))
        parts = {"values": "qweight", "scales": "scales"}
        if settings.get("zero_point", True) or f"{path}.qzeros" in tensors.infos:
            zeros = _part(tensors.infos, path, "qzeros")
            _require_shape(path, "qzeros", zeros, (groups, words), "I32")
            parts["zeros"] = "qzeros"
        _whole_groups(path, inputs, groups)
        yield QuantizedLayer(
            path, "awq", "AWQ", 4, (outputs, inputs), groups, _named(path, parts),
            symmetric=not settings.get("zero_point", True),
        )  # fmt: skip


_COMPRESSED = ("pack-quantized", "int-quantized", "naive-quantized", "float-quantized")


def _check_compressed(settings: Settings) -> None:
    schemes = settings.get("config_groups")
    each = list(schemes.values()) if isinstance(schemes, Mapping) else []
    formats = [settings.get("format"), *(s.get("format") for s in each if isinstance(s, Mapping))]
    for layout in filter(None, formats):
        if layout not in (*_COMPRESSED, "dense", "mixed-precision"):
            raise UnreadableError(
                f"its weights have the format {layout}, and only {', '.join(_COMPRESSED)} can be "
                "read"
            )
    sparse = settings.get("sparsity_config")
    if isinstance(sparse, Mapping) and sparse.get("format") not in (None, "dense"):
        raise UnreadableError(f"its weights are packed as sparse ones ({sparse.get('format')})")
    if settings.get("transform_config"):
        raise UnreadableError("its layers rotate their inputs (transform_config)")


def _compressed(_: Settings, tensors: Tensors) -> Iterator[QuantizedLayer]:
    """Values packed along the inputs or not at all, with weight_scale (outputs, groups)."""
    infos = tensors.infos
    for path, packed in _each(infos, "weight_packed"):
        outputs, words = _matrix(path, "weight_packed", packed, "I32")
        inputs = _stated_inputs(infos, path, outputs)
        bits = words * _WORD_BITS // inputs
        if bits not in _WIDTHS:
            raise UnreadableError(f"{path} has {bits} bits, and only 4 or 8 can be read")
        zeros = -(-outputs * bits // _WORD_BITS)
        yield _scaled(infos, path, "weight_packed", bits, (outputs, inputs), zeros)
    for path, info in _each(infos, "weight"):
        if info.dtype in _PLAIN_BITS and f"{path}.weight_scale" in infos:
            shape = _matrix(path, "weight", info)
            yield _scaled(infos, path, "weight", _PLAIN_BITS[info.dtype], shape, shape[0])


_PLAIN_BITS = {"I8": 8, "F8_E4M3": 8}


def _scaled(
    infos: Mapping[str, SavedTensor],
    path: str,
    leaf: str,
    bits: int,
    shape: tuple[int, int],
    zero_rows: int,
) -> QuantizedLayer:
    """A layer of compressed-tensors."""
    scales = _part(infos, path, "weight_scale")
    groups = scales.shape[1] if len(scales.shape) == 2 else 1
    if scales.shape not in ((shape[0], groups), (1, 1), (1,), (), (shape[0],)):
        _require_shape(path, "weight_scale", scales, (shape[0], groups))
    _whole_groups(path, shape[1], groups)
    parts = {"values": leaf, "scales": "weight_scale"}
    if f"{path}.weight_zero_point" in infos:
        parts["zeros"] = "weight_zero_point"
        if leaf == "weight_packed":
            zeros = infos[f"{path}.weight_zero_point"]
            _require_shape(path, "weight_zero_point", zeros, (zero_rows, groups))
    if f"{path}.weight_g_idx" in infos:
        _require_shape(path, "weight_g_idx", infos[f"{path}.weight_g_idx"], (shape[1],), "I32")
        parts["index"] = "weight_g_idx"
    layout = "float" if infos[f"{path}.{leaf}"].dtype == "F8_E4M3" else leaf
    kind = "compressed-tensors" + (" (float8)" if layout == "float" else "")
    return QuantizedLayer(
        path, layout, kind, bits, shape, groups, _named(path, parts),
        symmetric="zeros" not in parts,
        in_order=_in_order(infos, path, "weight_g_idx", groups),
    )  # fmt: skip


def _stated_inputs(infos: Mapping[str, SavedTensor], path: str, outputs: int) -> int:
    """The inputs of a layer by its tensor `weight_shape`, int64 of [outputs, inputs]."""
    info = _part(infos, path, "weight_shape")
    size = 8 if info.dtype == "I64" else 4
    data = info.read_bytes() if info.shape == (2,) else b""
    stated = [int.from_bytes(data[i : i + size], "little") for i in range(0, len(data), size)]
    if len(stated) != 2 or stated[0] != outputs or stated[1] < 1:
        raise UnreadableError(f"{path}.weight_shape is {stated}, for {outputs} outputs")
    return stated[1]


# Torchao's classes of tensors, with their scales' and zero points' parts.
_TORCHAO: Mapping[str, tuple[str, int]] = {
    "IntxUnpackedToInt8Tensor": ("plain", 8),
    "Int8Tensor": ("plain", 8),
    "Int4Tensor": ("int4", 4),
    "Int4TilePackedTo4dTensor": ("int4_tiles", 4),
}


def _torchao(_: Settings, tensors: Tensors) -> Iterator[QuantizedLayer]:
    """Tensors named PATH._weight_PART; the class and its attributes are in `__metadata__`.

    https://github.com/pytorch/ao/tree/main/torchao/prototype/safetensors
    """
    for name, text in tensors.metadata.items():
        path, leaf = name.rpartition(".")[::2]
        about = _attributes(name, text) if leaf == "weight" else None
        if about is None:
            continue
        kind, data = about
        if kind not in _TORCHAO:
            raise UnreadableError(
                f"{name} is torchao's {kind}, and only {', '.join(_TORCHAO)} can be read"
            )
        if f"{path}._weight_act_pre_scale" in tensors.infos:
            raise UnreadableError(f"{path} scales its inputs, too (act_pre_scale)")
        yield _torchao_layer(tensors.infos, path, kind, data)


def _attributes(name: str, text: str) -> tuple[str, Mapping[str, Any]] | None:
    """The class of a tensor and its attributes; None for one that is not quantized."""
    data: Any
    try:
        about = json.loads(text)
        kind, data = str(about["_type"]), about.get("_data", {})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnreadableError(f"what its file says about {name} cannot be read: {error}") from error
    if kind == "Tensor":
        return None
    if not isinstance(data, Mapping):
        raise UnreadableError(f"what its file says about {name} is not an object")
    return kind, data


def _torchao_layer(
    infos: Mapping[str, SavedTensor], path: str, kind: str, data: Mapping[str, Any]
) -> QuantizedLayer:
    layout, bits = _TORCHAO[kind]
    values = _part(infos, path, "_weight_qdata")
    types = ("I32",) if layout == "int4_tiles" else ("I8", "U8")
    _require_type(path, "_weight_qdata", values, types)
    parts = {"values": "_weight_qdata"}
    size = data.get("block_size")
    if not (isinstance(size, list) and len(size) == 2 and all(type(n) is int for n in size)):
        raise UnreadableError(f"{path} has blocks of {size}, and not of (outputs, inputs)")
    if layout == "plain":
        shape = _matrix(path, "_weight_qdata", values)
        bits = _torchao_bits(data, bits)
    else:
        stated = data.get("shape")
        if not (isinstance(stated, list) and len(stated) == 2):
            raise UnreadableError(f"{path} has the shape {stated}, and not of a matrix")
        shape = (int(stated[0]), int(stated[1]))
    if size[0] not in (1, shape[0]) or size[1] < 1 or shape[1] % size[1]:
        raise UnreadableError(
            f"{path} is {list(shape)}, which does not consist of blocks of {size}"
        )
    groups = shape[1] // size[1]
    scales = "_weight_scale_and_zero" if layout == "int4_tiles" else "_weight_scale"
    found = _part(infos, path, scales)
    if layout == "int4":
        _require_shape(path, "_weight_qdata", values, (shape[0], shape[1] // 2))
        _require_shape(path, scales, found, (groups, shape[0]))
    elif layout == "plain":
        _require_shape(path, scales, found, (shape[0] // size[0], groups))
    else:
        _require_tiles(path, shape, groups, values, found)
    parts["scales"] = scales
    if f"{path}._weight_zero_point" in infos:
        parts["zeros"] = "_weight_zero_point"
    symmetric = layout == "plain" and _is_zero(infos, f"{path}._weight_zero_point")
    named = f"torchao's {kind}"
    return QuantizedLayer(
        path, layout, named, bits, shape, groups, _named(path, parts), symmetric=symmetric
    )


def _require_tiles(
    path: str, shape: tuple[int, int], groups: int, values: SavedTensor, scales: SavedTensor
) -> None:
    """Compares what may be padded, (outputs / 8, inputs / 16 w, 32, w / 2) and scales, with it."""
    sizes = values.shape
    fits = len(sizes) == 4 and sizes[2] == _WORD_BITS and sizes[0] * 8 >= shape[0]
    if not (fits and sizes[1] * sizes[3] * 32 >= shape[1]):
        raise UnreadableError(f"{path}._weight_qdata is {list(sizes)}, for a layer {list(shape)}")
    stated = scales.shape
    if len(stated) != 3 or stated[0] < groups or stated[1] < shape[0] or stated[2] != 2:
        raise UnreadableError(
            f"{path}._weight_scale_and_zero is {list(stated)}, for a layer {list(shape)} with "
            f"{groups} groups"
        )


def _torchao_bits(data: Mapping[str, Any], otherwise: int) -> int:
    """The width of `target_dtype`, {"_type": "torch.dtype", "_data": "int4"}."""
    stated = data.get("target_dtype")
    name = str(stated.get("_data")) if isinstance(stated, Mapping) else f"int{otherwise}"
    digits = name.removeprefix("int")
    return int(digits) if digits.isdigit() else otherwise


def trained_layers(infos: Mapping[str, SavedTensor]) -> Iterator[QuantizedLayer]:
    """What torchao's quantization-aware training converts to: Int8DynActInt4WeightLinear.

    weight int8 (outputs, inputs), scales and zeros (outputs, groups); config.json says nothing.
    """
    for path, info in _each(infos, "weight"):
        if info.dtype != "I8" or f"{path}.scales" not in infos:
            continue
        outputs, inputs = _matrix(path, "weight", info)
        scales = infos[f"{path}.scales"]
        groups = _matrix(path, "scales", scales)[1]
        _require_shape(path, "scales", scales, (outputs, groups))
        _require_shape(path, "zeros", _part(infos, path, "zeros"), (outputs, groups))
        _whole_groups(path, inputs, groups)
        parts = {"values": "weight", "scales": "scales", "zeros": "zeros"}
        yield QuantizedLayer(
            path, "plain", "torchao's Int8DynActInt4WeightLinear", 4, (outputs, inputs), groups,
            _named(path, parts), symmetric=_is_zero(infos, f"{path}.zeros"),
        )  # fmt: skip


def _named(path: str, parts: Mapping[str, str]) -> dict[str, str]:
    return {part: f"{path}.{leaf}" for part, leaf in parts.items()}


@dataclass(frozen=True)
class QuantizationMethod:
    """A method of `quantization_config`: what is refused of its settings, and its layers."""

    check: Callable[[Settings], None]
    find: Callable[[Settings, Tensors], Iterator[QuantizedLayer]] = field(repr=False)


METHODS: Mapping[str, QuantizationMethod] = {
    "gptq": QuantizationMethod(_check_gptq, _gptq),
    "awq": QuantizationMethod(_check_awq, _awq),
    "compressed-tensors": QuantizationMethod(_check_compressed, _compressed),
    "torchao": QuantizationMethod(lambda _: None, _torchao),
}
