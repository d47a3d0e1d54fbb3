"""A language model in a GGUF file, as transformers loads it, with what transformers leaves out.

That is the scaling of rotary positions, some pre-tokenizers, the tokens that end a turn, and the
values of blocks that kernels can compute with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from etdeploy.export.hf.gguf import EMBEDDINGS, GgufHeader, GgufTensor, read_header
from etdeploy.export.worker.lowering.stored import StoredWeight

_LINKED = "weights.gguf"
Array = np.ndarray[Any, Any]
_BLOCK = 32
# Of a product and a sum in float32, relative to the largest weight.
_ROUNDING = 1e-6
# Gemma 2 and 3.
_LAYERS_OF_27B = (46, 62)
# Tensors of factors by which the frequencies of rotary positions are divided.
_FACTORS, _SHORT, _LONG = (
    f"rope_{name}.weight" for name in ("freqs", "factors_short", "factors_long")
)
# Keys of tokens at which a text or a turn ends.
_STOPS = tuple(f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom"))
# The first splits digits from one another, as llama.cpp does it for these names; transformers
# takes the second for all that it does not know.
_SINGLE_DIGITS = ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone")
_BYTE_LEVEL = ("default", "gpt-2", "mpt", "olmo", "jais", "phi-2")


def link(path: Path, folder: Path) -> Path:
    """A name for the file with the suffix that transformers asks for, in an empty folder."""
    linked = folder / _LINKED
    linked.symlink_to(path.resolve())
    return linked


def arguments(linked: Path) -> dict[str, Any]:
    """Arguments of `from_pretrained`, the path first; a relative one would be looked for in the
    working folder.
    """
    return {
        "pretrained_model_name_or_path": str(linked.parent),
        "gguf_file": str(linked),
        "local_files_only": True,
    }


def dequantized() -> dict[str, Any]:
    """What a model is loaded with besides, so that its layers are ordinary ones."""
    from transformers import GgufConfig

    return {"quantization_config": GgufConfig(dequantize=True)}


def complete_config(path: Path, config: Any) -> None:
    """Sets what transformers does not read of heads, positions, biases and the vocabulary."""
    header = read_header(path)
    config.vocab_size = header.vocabulary
    if isinstance(config.pad_token_id, int) and config.pad_token_id >= header.vocabulary:
        config.pad_token_id = None
    if hasattr(config, "attention_bias"):
        config.attention_bias = "blk.0.attn_q.bias" in header.tensors
    size = header.of_architecture("attention.key_length")
    if size and hasattr(config, "head_dim"):
        config.head_dim = size
    if size and hasattr(config, "query_pre_attn_scalar"):
        # llama.cpp knows the models of 27B by their number of layers, too.
        whole = config.num_hidden_layers in _LAYERS_OF_27B
        config.query_pre_attn_scalar = (
            config.hidden_size // config.num_attention_heads if whole else size
        )
    scaling = _scaling(header)
    rope = config.rope_parameters if scaling else {}
    if "full_attention" in rope:  # layers with a window have no scaling
        rope["full_attention"] = {**rope["full_attention"], **scaling}
    elif scaling:
        config.rope_parameters = {**rope, **scaling}


def _scaling(header: GgufHeader) -> dict[str, Any]:
    """Of rotary positions, as transformers' `rope_parameters` has it."""
    kind, factor, original = (
        header.of_architecture(f"rope.scaling.{key}")
        for key in ("type", "factor", "original_context_length")
    )
    if kind not in ("linear", "yarn") or not factor or factor == 1:
        return {}
    positions = {"original_max_position_embeddings": original} if original else {}
    return {"rope_type": kind, "factor": factor, **(positions if kind == "yarn" else {})}


def complete_model(path: Path, model: Any, context: int) -> None:
    """Sets, in a model that is loaded, the frequencies of its positions and where it stops."""
    header = read_header(path)
    stops = [header.metadata[key] for key in _STOPS if key in header.metadata]
    model.generation_config.eos_token_id = list(dict.fromkeys(stops)) or None
    factors = _factors(path, header, context)
    if factors is None:
        return
    scaling = header.of_architecture("rope.scaling.attn_factor")
    for module in model.modules():
        frequencies = getattr(module, "inv_freq", None)
        if frequencies is None or frequencies.shape != factors.shape:
            continue
        module.inv_freq = frequencies / factors
        module.original_inv_freq = module.inv_freq
        if scaling:
            module.attention_scaling = scaling


def _factors(path: Path, header: GgufHeader, context: int) -> torch.Tensor | None:
    """Of each frequency; of two tables, that for contexts of this length."""
    original = header.of_architecture("rope.scaling.original_context_length")
    name = _FACTORS if _FACTORS in header.tensors else _SHORT
    if name == _SHORT and original and context > original:
        name = _LONG
    tensor = header.tensors.get(name)
    if tensor is None or tensor.type.name != "F32":
        return None
    return torch.from_numpy(_data(path, header, tensor).view("<f4").reshape(-1).copy())


def write_tokenizer(path: Path, folder: Path) -> str | None:
    """Writes the tokenizer and the chat template into a folder, in the files of transformers.

    Returns a sentence where texts may be split in another way than by llama.cpp.
    """
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

    tokenizer = AutoTokenizer.from_pretrained(**arguments(link(path, folder)))
    metadata = read_header(path).metadata
    kind, split = (metadata.get(f"tokenizer.ggml.{key}") for key in ("model", "pre"))
    if kind == "gpt2" and split in _SINGLE_DIGITS:
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False),
            ]
        )
    tokenizer.save_pretrained(folder)
    known = (None, *_SINGLE_DIGITS, *_BYTE_LEVEL, *GGUF_PRE_TOKENIZER_SPLITS)
    if kind == "gpt2" and split not in known:
        return (
            f"The file names the pre-tokenizer {split!r}, which is not known here: texts are split "
            "as GPT-2 does it, perhaps into other tokens than the model learned."
        )
    return None


def stored_weights(path: Path, model: Any) -> dict[str, StoredWeight]:
    """The weights of linear layers that the file has in blocks, by the paths of the layers."""
    return dict(_stored(path, model))


def _stored(path: Path, model: Any) -> Iterator[tuple[str, StoredWeight]]:
    header = read_header(path)
    heads = _head_counts(model)
    for layer, tensor in layer_tensors(header, model).items():
        kind = tensor.type
        if kind.is_float:
            continue
        found = StoredWeight(kind.name, kind.bits)
        if kind.name in _UNPACKED:
            weight = model.get_submodule(layer).weight.detach()
            blocks = _UNPACKED[kind.name](_data(path, header, tensor))
            found = _in_order(found, blocks, weight, heads) or found
        yield layer, found


def layer_tensors(header: GgufHeader, model: Any) -> dict[str, GgufTensor]:
    """The tensor of each linear layer's weight, by the layer's path."""
    names, found = _names(header), {}
    for layer, module in model.named_modules():
        if not isinstance(module, torch.nn.Linear):
            continue
        tensor = header.tensors.get(f"{names.get_name(layer)}.weight")
        if tensor is None and module is model.get_output_embeddings():
            tensor = header.tensors.get(EMBEDDINGS)
        if tensor is not None and tensor.shape == tuple(module.weight.shape):
            found[layer] = tensor
    return found


def unused_tensors(path: Path, model: Any) -> set[str]:
    """The tensors of the file that nothing in the model is."""
    header = read_header(path)
    names = _names(header)
    paths = (name.rpartition(".") for name in model.state_dict())
    used = {f"{names.get_name(layer)}.{kind}" for layer, _, kind in paths}
    return {*header.tensors} - used - {_FACTORS, _SHORT, _LONG}


def _names(header: GgufHeader) -> Any:
    """The map from a parameter's path to a tensor's name."""
    from gguf import MODEL_ARCH_NAMES, get_tensor_name_map

    arch = next(a for a, name in MODEL_ARCH_NAMES.items() if name == header.architecture)
    return get_tensor_name_map(arch, int(header.of_architecture("block_count") or 0))


def _data(path: Path, header: GgufHeader, tensor: GgufTensor) -> Array:
    """The bytes of a tensor, a row for each output."""
    start = header.data_start + tensor.offset
    mapped = np.memmap(path, np.uint8, "r", start, (tensor.size_bytes,))
    return mapped.reshape(tensor.shape[0], -1)


class Blocks(NamedTuple):
    """A matrix of 4-bit values, as `StoredWeight` has them; scales may be negative here."""

    values: torch.Tensor
    scales: torch.Tensor
    offsets: torch.Tensor

    def ordered(self, rows: torch.Tensor) -> Blocks:
        return Blocks(*(each[rows] for each in self))

    def weight(self) -> torch.Tensor:
        scales, offsets = (
            each.repeat_interleave(_BLOCK, dim=1) for each in (self.scales, self.offsets)
        )
        return self.values * scales + offsets

    def with_positive_scales(self) -> Blocks:
        """The same weights with scales as XNNPACK takes them: s * v is -s * (-v - 1) - s."""
        negative = self.scales < 0
        values = torch.where(
            negative.repeat_interleave(_BLOCK, dim=1), -self.values - 1, self.values
        )
        scales = self.scales.abs()
        return Blocks(values, scales, torch.where(negative, self.offsets + scales, self.offsets))


def _split(data: Array, block_bytes: int, *sizes: int) -> tuple[int, tuple[Array, ...]]:
    """The number of rows, and the parts of all blocks: the last of what is left."""
    blocks = data.reshape(-1, block_bytes)
    return data.shape[0], tuple(np.split(blocks, np.cumsum(sizes), axis=1))


def _halves(part: Array) -> Array:
    """Float16 as float32, for each block."""
    floats: Array = part.copy().view("<f2").astype(np.float32)
    return floats


def _nibbles(packed: Array, size: int) -> Array:
    """Values less 8: of so many bytes, the lower halves come before the upper ones."""
    parts = packed.reshape(-1, size)
    both: Array = np.concatenate([parts & 15, parts >> 4], axis=1).astype(np.int8) - np.int8(8)
    return both


def _blocks(rows: int, values: Array, scales: Array, offsets: Array) -> Blocks:
    return Blocks(*(torch.from_numpy(each.reshape(rows, -1)) for each in (values, scales, offsets)))


def unpack_q4_0(data: Array) -> Blocks:
    """Blocks of a scale and 32 values plus 8."""
    rows, (scale, packed) = _split(data, 18, 2)
    scales = _halves(scale)
    return _blocks(rows, _nibbles(packed, 16), scales, np.zeros_like(scales))


def unpack_q4_1(data: Array) -> Blocks:
    """Blocks of a scale, a minimum and 32 values from 0."""
    rows, (scale, least, packed) = _split(data, 20, 2, 2)
    scales = _halves(scale)
    return _blocks(rows, _nibbles(packed, 16), scales, _halves(least) + 8 * scales)


def unpack_q4_k(data: Array) -> Blocks:
    """Blocks of two factors, 6-bit scales and minima of 8 groups, and 256 values from 0.

    The first four scales and minima are the lower 6 bits of bytes 0 to 7. Of the others, bytes 8 to
    11 have the lower halves, and the upper 2 bits of bytes 0 to 7 the rest.
    """
    rows, (factor, least, packed, values) = _split(data, 144, 2, 2, 12)
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    steps = np.concatenate([first & 63, (third & 15) | (first >> 6 << 4)], axis=1)
    minima = np.concatenate([second & 63, (third >> 4) | (second >> 6 << 4)], axis=1)
    scales = _halves(factor) * steps
    return _blocks(rows, _nibbles(values, 32), scales, 8 * scales - _halves(least) * minima)


# The layout of each: https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h
_UNPACKED: Mapping[str, Callable[[Array], Blocks]] = {
    "Q4_0": unpack_q4_0,
    "Q4_1": unpack_q4_1,
    "Q4_K": unpack_q4_k,
}


def _in_order(
    kind: StoredWeight, blocks: Blocks, weight: torch.Tensor, heads: tuple[int, ...]
) -> StoredWeight | None:
    """The blocks in the order of a layer's outputs; None where they are not its weight.

    Files of some architectures have the outputs of queries and keys in another order, in which a
    head's halves alternate. The order is found by comparison, since it depends on the converter.
    """
    tolerance = _ROUNDING * float(weight.abs().max())
    for order in _orders(len(weight), heads):
        found = blocks.ordered(order)
        if torch.allclose(found.weight(), weight, rtol=0, atol=tolerance):
            values, scales, offsets = found.with_positive_scales()
            kept = offsets if bool(offsets.any()) else None
            return replace(kind, values=values, scales=scales, offsets=kept)
    return None


def _orders(rows: int, heads: tuple[int, ...]) -> Iterator[torch.Tensor]:
    index = torch.arange(rows)
    yield index
    for count in heads:
        if rows % (2 * count) == 0:
            yield index.reshape(count, -1, 2).transpose(1, 2).reshape(-1)


def _head_counts(model: Any) -> tuple[int, ...]:
    config = model.config.get_text_config(decoder=True)
    names = ("num_attention_heads", "num_key_value_heads")
    counts = (getattr(config, name, None) for name in names)
    return tuple(dict.fromkeys(n for n in counts if isinstance(n, int) and n > 0))
