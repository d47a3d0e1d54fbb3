"""Weights that a checkpoint has quantized: unpacked to floats, and kept as they are where they fit.

The layouts, each with n = 32 / bits values in an int32, the first in the lowest bits:

- gptq: values (inputs / n, outputs) and zero points minus 1 (groups, outputs / n); gptq_v2 without
  that 1. https://github.com/AutoGPTQ/AutoGPTQ/blob/main/auto_gptq/nn_modules/qlinear
- awq: values (inputs, outputs / 8) and zero points (groups, outputs / 8), the outputs of a word in
  the order 0, 2, 4, 6, 1, 3, 5, 7.
- weight_packed, of compressed-tensors: values plus 2^(bits-1) (outputs, inputs / n), zero points
  likewise (outputs / n, groups).
- int4, of torchao: two values of a byte (outputs, inputs / 2), with floats that are added.
- int4_tiles, of torchao: the order of a CUDA kernel, `matrix_to_m16n8k16_Bint4_layout` of PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from etdeploy.core.console import count
from etdeploy.export.hf.prequantized import ORIGINAL, Prequantized
from etdeploy.export.hf.quantized_layers import QuantizedLayer
from etdeploy.export.hf.tensors import weight_files
from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.failures import fail
from etdeploy.export.worker.lowering.rowwise import is_large, upcast_by_rows
from etdeploy.export.worker.lowering.stored import StoredWeight
from etdeploy.export.worker.lowering.weight_files import WeightFiles
from etdeploy.recipe.hub_cache import CONFIG, read_object

Parts = Mapping[str, torch.Tensor]
# Of the outputs in a word of AWQ, by their place in it.
_AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
# The multiples of 32 that quantization-aware training is done with.
_TRAINED_GROUPS = (32, 64, 128, 256)
# In steps. Bfloat16 rounds by up to 2^-8: a value of 8 steps, and the extreme that a step is from.
_OFF_GRID = 1 / 16


@dataclass(frozen=True)
class Integers:
    """An unpacked weight: (values - zeros) * scales + offsets, for each group.

    Attributes:
        values: Integers of shape (outputs, inputs), from -2^(bits-1) to 2^(bits-1) - 1.
        scales: Float32 of shape (outputs, groups).
        zeros: Zero points, as `scales`; None where there are none.
        offsets: What is added after scaling, as `scales`.
        index: The group of each input, where they are not neighbours in equal numbers.
    """

    values: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None = None
    offsets: torch.Tensor | None = None
    index: torch.Tensor | None = None

    def spread(self, of_groups: torch.Tensor) -> torch.Tensor:
        """What each group has, for each input."""
        if self.index is not None:
            return of_groups[:, self.index]
        return of_groups.repeat_interleave(self.values.shape[1] // of_groups.shape[1], 1)


def unpack_weight(layer: QuantizedLayer, parts: Parts) -> tuple[torch.Tensor, StoredWeight]:
    """The weight in floats, and as the checkpoint has it.

    Args:
        layer: What the headers say.
        parts: Its tensors, by the keys of `layer.parts`.
    """
    if layer.layout == "float":
        values = parts["values"].float()
        scales = _scales(parts["scales"], layer)
        weight = values * scales.repeat_interleave(layer.group_size, 1)
        return weight, StoredWeight(layer.kind, layer.bits)
    found = _LAYOUTS[layer.layout](layer, parts)
    whole = found.values.float()
    if found.zeros is not None:
        whole = whole - found.spread(found.zeros.float())
    weight = whole * found.spread(found.scales)
    if found.offsets is not None:
        weight = weight + found.spread(found.offsets)
    return weight, _stored(layer, found, whole)


def _stored(layer: QuantizedLayer, found: Integers, whole: torch.Tensor) -> StoredWeight:
    """The weight with offsets for zero points, except where values less them are in range."""
    bits = 4 if layer.bits <= 4 else 8
    if found.index is not None:
        return StoredWeight(f"{layer.kind} with desc_act", bits)
    size = layer.group_size
    odd = f" in groups of {size}" if layer.groups > 1 and size % _TRAINED_GROUPS[0] else ""
    half = 2 ** (bits - 1)
    in_range = whole.min() >= -half and whole.max() < half and bool((whole == whole.round()).all())
    offsets = found.offsets if found.offsets is not None else torch.zeros_like(found.scales)
    if in_range and not bool(offsets.any()):
        return StoredWeight(f"{layer.kind}{odd}", bits, _integers(whole), found.scales)
    if found.zeros is not None:
        offsets = offsets - found.scales * found.zeros
    kind, values = f"{layer.kind}{odd} with zero points", _integers(found.values)
    return StoredWeight(kind, bits, values, found.scales, offsets)


def _integers(values: torch.Tensor) -> torch.Tensor:
    """In the order of rows, as they are read."""
    return values.to(torch.int8).contiguous()


def _in_order(index: torch.Tensor, groups: int) -> bool:
    size = index.numel() // groups
    return index.numel() % groups == 0 and bool(
        (index == torch.arange(index.numel()).div(size, rounding_mode="floor")).all()
    )


def unpack_bits(packed: torch.Tensor, bits: int) -> torch.Tensor:
    """The values of 32-bit words, the lowest bits first: (rows, words) to (rows, values)."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    values = (packed.to(torch.int32).unsqueeze(-1) >> shifts) & (2**bits - 1)
    return values.flatten(1).to(torch.int16)


def _gptq(layer: QuantizedLayer, parts: Parts) -> Integers:
    half = 2 ** (layer.bits - 1)
    values = unpack_bits(parts["values"].T, layer.bits) - half
    zeros = unpack_bits(parts["zeros"], layer.bits).T
    if layer.layout == "gptq":  # 15 and 1 are 16, which no 4 bits hold: its zero point is 0
        zeros = (zeros + 1) & (2**layer.bits - 1)
    index = parts["index"].long() if "index" in parts else None
    scales = parts["scales"].T.float()
    return Integers(values, scales, zeros - half, index=_checked(index, layer))


def _checked(index: torch.Tensor | None, layer: QuantizedLayer) -> torch.Tensor | None:
    """The groups of inputs, or None where they are neighbours in equal numbers."""
    if index is None or _in_order(index, layer.groups):
        return None
    if index.min() < 0 or index.max() >= layer.groups:
        raise ValueError(f"the groups of {layer.path} are not 0 to {layer.groups - 1}")
    return index


def _awq(_: QuantizedLayer, parts: Parts) -> Integers:
    places = torch.tensor(_AWQ_PLACES)

    def ordered(packed: torch.Tensor) -> torch.Tensor:
        return unpack_bits(packed, 4).unflatten(1, (-1, 8))[..., places].flatten(1).T - 8

    zeros = ordered(parts["zeros"]) if "zeros" in parts else None
    return Integers(ordered(parts["values"]), parts["scales"].T.float(), zeros)


def _packed(layer: QuantizedLayer, parts: Parts) -> Integers:
    half = 2 ** (layer.bits - 1)
    values = unpack_bits(parts["values"], layer.bits)[:, : layer.shape[1]] - half
    zeros = None
    if "zeros" in parts:
        zeros = unpack_bits(parts["zeros"].T, layer.bits).T[: layer.shape[0]] - half
    index = parts["index"].long() if "index" in parts else None
    return Integers(values, _scales(parts["scales"], layer), zeros, index=_checked(index, layer))


def _plain(layer: QuantizedLayer, parts: Parts) -> Integers:
    zeros = _scales(parts["zeros"], layer) if "zeros" in parts else None
    index = parts["index"].long() if "index" in parts else None
    scales = _scales(parts["scales"], layer)
    return Integers(parts["values"], scales, zeros, index=_checked(index, layer))


def _scales(found: torch.Tensor, layer: QuantizedLayer) -> torch.Tensor:
    """Float32 of shape (outputs, groups), of a tensor that may have one for all."""
    shaped = found.float().reshape(-1, layer.groups)
    return shaped.expand(layer.shape[0], layer.groups).contiguous()


def _int4(_: QuantizedLayer, parts: Parts) -> Integers:
    packed = parts["values"].view(torch.uint8)
    nibbles = torch.stack([packed & 0xF, packed >> 4], -1).flatten(1).to(torch.int16)
    values = (nibbles ^ 8) - 8  # two's complement
    return Integers(values, parts["scales"].T.float(), offsets=parts["zeros"].T.float())


def _int4_tiles(layer: QuantizedLayer, parts: Parts) -> Integers:
    """Words (outputs / 8, inputs / 16 w, 32, w / 2) for w tiles of 16 inputs; both are padded.

    Lane t of a word has output t / 4 and the inputs 2 (t % 4) + 0, 1, 8 and 9 of two tiles.
    """
    tiles, steps, lanes, pairs = parts["values"].shape
    nibbles = unpack_bits(parts["values"].reshape(-1, 1), 4)
    # The lowest 16 bits have inputs 0 and 8 of both tiles, the others their neighbours.
    found = nibbles.reshape(tiles, steps, lanes // 4, 4, pairs, 2, 2, 2)
    ordered = found.permute(0, 2, 1, 4, 6, 7, 3, 5).reshape(tiles * 8, -1)
    outputs, inputs = layer.shape
    both = parts["scales"][: layer.groups, :outputs].float()
    scales, offsets = (both[..., i].T.contiguous() for i in range(2))
    return Integers(ordered[:outputs, :inputs] - 8, scales, offsets=offsets)


_LAYOUTS: Mapping[str, Callable[[QuantizedLayer, Parts], Integers]] = {
    "gptq": _gptq,
    "gptq_v2": _gptq,
    "awq": _awq,
    "weight_packed": _packed,
    "weight": _plain,
    "plain": _plain,
    "int4": _int4,
    "int4_tiles": _int4_tiles,
}


def unpacked_state(
    spec: ExportSpec, folder: Path, found: Prequantized, *, rowwise: bool = False
) -> tuple[dict[str, torch.Tensor], dict[str, StoredWeight]]:
    """A checkpoint's tensors as if it were of floats, and its quantized weights by layer.

    Large weights are computed by rows if `rowwise`.
    """
    import transformers

    if read_object(folder / CONFIG).get("model_type") not in transformers.CONFIG_MAPPING:
        raise fail(
            "checkpoint",
            "the checkpoint is quantized already, and only models that transformers has itself "
            "can be loaded from one",
            remedy=ORIGINAL,
            file=spec.place("model", "hf"),
        )
    try:
        return _unpacked(folder, found, rowwise=rowwise)
    except ValueError as error:
        raise fail("checkpoint", str(error), remedy=ORIGINAL, file=str(folder)) from error


def _unpacked(
    folder: Path, found: Prequantized, *, rowwise: bool
) -> tuple[dict[str, torch.Tensor], dict[str, StoredWeight]]:
    state: dict[str, torch.Tensor] = {}
    stored: dict[str, StoredWeight] = {}
    with ExitStack() as stack:
        where = dict(_opened(folder, stack))
        for name, file in where.items():
            if name not in found.tensors:
                tensor = file.get_tensor(name)
                state[name] = upcast_by_rows(tensor) if rowwise else tensor
        for layer in found.layers:
            parts = {part: where[name].get_tensor(name) for part, name in layer.parts.items()}
            weight, stored[layer.path] = unpack_weight(layer, parts)
            by_rows = stored[layer.path].by_rows() if rowwise and is_large(weight) else None
            state[f"{layer.path}.weight"] = weight if by_rows is None else by_rows
    return state, stored


def joined_notes(model: torch.nn.Module, stored: Mapping[str, StoredWeight]) -> Iterator[str]:
    """A sentence about quantized layers that the model does not have: experts, mostly."""
    layers = {path for path, _ in model.named_modules()}
    joined = [path for path in stored if path not in layers]
    if joined:
        yield (
            f"transformers joins or renames {count(len(joined), 'quantized layer')}, such as "
            f"{joined[0]}: unpacked to floats, and treated as those of a float model."
        )


def of_linears(
    model: torch.nn.Module, stored: Mapping[str, StoredWeight]
) -> dict[str, StoredWeight]:
    """The weights that are those of a linear layer; others may have been joined or renamed."""
    layers = dict(model.named_modules())
    return {
        path: weight
        for path, weight in stored.items()
        if isinstance(layers.get(path), torch.nn.Linear)
    }


def _opened(folder: Path, stack: ExitStack) -> Iterator[tuple[str, Any]]:
    """The file that has each tensor."""
    from safetensors import safe_open

    for path in weight_files(folder):
        file = stack.enter_context(safe_open(path, framework="pt"))
        for name in file.keys():  # noqa: SIM118 - it is not a mapping
            yield name, file


def weights_on_grid(
    model: torch.nn.Module, files: WeightFiles | None = None
) -> dict[str, StoredWeight]:
    """Linear layers whose float weights are those of 4 bits, by path; large ones in `files`.

    Quantization-aware training may save them so: each group's values are integers from -8 to 7
    times a scale.
    """
    found = {}
    for path, layer in model.named_modules():
        if isinstance(layer, torch.nn.Linear):
            weight = layer.weight.detach()
            size = next((n for n in _TRAINED_GROUPS if _on_grid(weight[:8], n)), None)
            if size and _on_grid(weight, size):
                stored = _integers_of(weight, size)
                found[path] = stored.moved(files.moved) if files else stored
    return found


def _integers_of(weight: torch.Tensor, size: int) -> StoredWeight:
    """The weight on its grid, with the scales of the least squared error."""
    values, scales = _grid(weight, size)
    groups = weight.float().unflatten(1, (-1, size))
    squares = (values * values).sum(-1)
    fitted = (groups * values).sum(-1) / squares.clamp(min=1)
    return StoredWeight(
        f"floats that are 4-bit values in groups of {size}",
        4,
        values.flatten(1).to(torch.int8),
        torch.where(squares > 0, fitted, scales.squeeze(-1)),
    )


def _grid(weight: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The nearest values and the scales, if an extreme of each group is the first or last value."""
    groups = weight.float().unflatten(1, (-1, size))
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    scales = torch.maximum(-low / 8, high / 7).clamp(min=1e-12)
    return (groups / scales).round(), scales


def _on_grid(weight: torch.Tensor, size: int) -> bool:
    if weight.shape[1] % size or not bool(weight.any()):
        return False
    values, scales = _grid(weight, size)
    error = weight.float().unflatten(1, (-1, size)) / scales - values
    return bool((error.abs() <= _OFF_GRID).all())
