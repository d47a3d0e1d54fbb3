"""Checkpoints with quantized weights, packed as the libraries that make them do it.

Each function of `FORMATS` takes the state of a float model, and gives the tensors of a checkpoint,
its `quantization_config` and what its weights stand for.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from etdeploy.export.spec import CALIBRATION_TEXT, ExportSpec, HfModel
from etdeploy.export.worker.language.load import load_model
from etdeploy.export.worker.lowering.quantize import quantize_layers
from etdeploy.export.worker.lowering.scales import Activations
from etdeploy.recipe.sections.export import ExportGeneration

State = dict[str, torch.Tensor]


@dataclass
class QuantizedState:
    """What a checkpoint has, and the floats that each quantized weight stands for."""

    settings: dict[str, Any] | None
    tensors: State = field(default_factory=dict)
    floats: State = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=lambda: {"format": "pt"})


@dataclass(frozen=True)
class Rounded:
    """A weight rounded to the nearest: unsigned values, zero points, scales in float16."""

    values: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor
    floats: torch.Tensor


def rounded(weight: torch.Tensor, bits: int, size: int, *, symmetric: bool) -> Rounded:
    groups = weight.float().unflatten(1, (-1, size))
    low, high = groups.amin(-1).clamp(max=0), groups.amax(-1).clamp(min=0)
    half, top = 2 ** (bits - 1), 2**bits - 1
    if symmetric:
        scales = (torch.maximum(-low / half, high / (half - 1))).half()
        zeros = torch.full(scales.shape, half, dtype=torch.int32)
    else:
        scales = ((high - low) / top).half()
        zeros = (-low / scales).round().clamp(0, top).int()
    steps = scales.float().unsqueeze(-1)
    values = ((groups / steps).round() + zeros.unsqueeze(-1)).clamp(0, top).int()
    floats = (values - zeros.unsqueeze(-1)) * steps
    return Rounded(values.flatten(1), scales, zeros, floats.flatten(1))


def packed(values: torch.Tensor, bits: int) -> torch.Tensor:
    """Words of 32 bits along the rows, the first value in the lowest bits."""
    per_word = 32 // bits
    words = sum(values[:, i::per_word].long() << (bits * i) for i in range(per_word))
    assert isinstance(words, torch.Tensor)
    return torch.where(words >= 2**31, words - 2**32, words).int()


def is_quantized(name: str) -> bool:
    """Of the weights in the layers of a Llama, and in the experts of a Mixtral."""
    return name.endswith("_proj.weight") or ".experts." in name


def gptq(
    state: State,
    *,
    bits: int = 4,
    size: int = 32,
    symmetric: bool = True,
    ordered: bool = True,
    version: int = 1,
) -> QuantizedState:
    """As AutoGPTQ and GPTQModel; with `ordered` false, groups have inputs from all over."""
    made = QuantizedState(
        {
            "quant_method": "gptq", "bits": bits, "group_size": size, "sym": symmetric,
            "desc_act": not ordered, "checkpoint_format": "gptq_v2" if version == 2 else "gptq",
        }
    )  # fmt: skip
    for name, weight in state.items():
        path = name.removesuffix(".weight")
        if not is_quantized(name):
            made.tensors[name] = weight
            continue
        inputs = weight.shape[1]
        order = torch.arange(inputs) if ordered else torch.randperm(inputs)
        found = rounded(weight[:, order], bits, size, symmetric=symmetric)
        back = torch.argsort(order)
        stated = found.zeros if version == 2 else (found.zeros - 1) & (2**bits - 1)
        made.tensors |= {
            f"{path}.qweight": packed(found.values[:, back], bits).T.contiguous(),
            f"{path}.qzeros": packed(stated.T, bits).contiguous(),
            f"{path}.scales": found.scales.T.contiguous(),
            f"{path}.g_idx": (back // size).int(),
        }
        made.floats[name] = found.floats[:, back]
    return made


def awq(state: State, *, size: int = 32) -> QuantizedState:
    """As AutoAWQ's version gemm."""
    made = QuantizedState(
        {
            "quant_method": "awq",
            "bits": 4,
            "group_size": size,
            "zero_point": True,
            "version": "gemm",
        }
    )
    order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])
    for name, weight in state.items():
        path = name.removesuffix(".weight")
        if not is_quantized(name):
            made.tensors[name] = weight
            continue
        found = rounded(weight, 4, size, symmetric=False)
        for leaf, values in (("qweight", found.values.T), ("qzeros", found.zeros.T)):
            shuffled = values.unflatten(1, (-1, 8))[..., order].flatten(1)
            made.tensors[f"{path}.{leaf}"] = packed(shuffled, 4)
        made.tensors[f"{path}.scales"] = found.scales.T.contiguous()
        made.floats[name] = found.floats
    return made


def awq_converted(state: State) -> QuantizedState:
    """AWQ's tensors as compressed-tensors reads them: what `awq` packs is what others read."""
    from compressed_tensors.entrypoints.convert.converters.autoawq import AutoAWQConverter

    made = awq(state)
    converter = AutoAWQConverter(group_size=32)
    config = converter.update_config(None)
    assert config is not None
    tensors = converter.process(made.tensors)
    return QuantizedState(config.model_dump(mode="json"), tensors, made.floats)


def compressed(
    state: State,
    *,
    bits: int = 4,
    size: int | None = 32,
    symmetric: bool = True,
    floats: bool = False,
) -> QuantizedState:
    """By the library compressed-tensors itself, which also says what the weights stand for."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    layout = "float-quantized" if floats else "pack-quantized" if bits == 4 else "int-quantized"
    weights = {
        "num_bits": bits, "type": "float" if floats else "int", "symmetric": symmetric,
        "strategy": "group" if size else "channel", "group_size": size,
    }  # fmt: skip
    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**weights))
    group = {"targets": ["Linear"], "weights": weights, "format": layout}
    made = QuantizedState(
        {"quant_method": "compressed-tensors", "format": layout, "ignore": ["lm_head"],
         "config_groups": {"group_0": group}, "quantization_status": "compressed"}
    )  # fmt: skip
    compressor = BaseCompressor.get_value_from_registry(layout)
    for name, weight in state.items():
        if not is_quantized(name):
            made.tensors[name] = weight
            continue
        found = rounded(weight, bits, size or weight.shape[1], symmetric=symmetric)
        scales = found.scales.float()
        if floats:
            scales = weight.abs().amax(1, keepdim=True) / 448
        own = {"weight": weight, "weight_scale": scales}
        if not symmetric:
            own["weight_zero_point"] = (found.zeros - 2 ** (bits - 1)).to(torch.int8)
        packed_state = compressor.compress(own, scheme)
        path = name.removesuffix("weight")
        made.tensors |= {f"{path}{leaf}": t.contiguous() for leaf, t in packed_state.items()}
        made.floats[name] = compressor.decompress(packed_state, scheme)["weight"].float()
    return made


def torchao(state: State, make: Callable[[torch.Tensor], Any]) -> QuantizedState:
    """As torchao flattens its tensors for safetensors; `make` gives the tensor of a weight."""
    from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict

    made = QuantizedState({"quant_method": "torchao", "quant_type": {}})
    whole: dict[str, Any] = {}
    for name, weight in state.items():
        whole[name] = make(weight) if is_quantized(name) else weight
        if is_quantized(name):
            made.floats[name] = whole[name].dequantize().float()
    made.tensors, metadata = flatten_tensor_state_dict(whole)
    made.metadata |= metadata
    return made


def intx(
    weight: torch.Tensor, *, bits: int = 4, size: int | None = 32, symmetric: bool = True
) -> Any:
    """What IntxWeightOnlyConfig and Int8DynamicActivationIntxWeightConfig make of a weight."""
    from torchao.quantization import IntxUnpackedToInt8Tensor, MappingType

    return IntxUnpackedToInt8Tensor.from_hp(
        weight,
        (1, size or weight.shape[1]),
        getattr(torch, f"int{bits}"),
        mapping_type=MappingType.SYMMETRIC if symmetric else MappingType.ASYMMETRIC,
    )


def int8(weight: torch.Tensor) -> Any:
    """What Int8WeightOnlyConfig makes of a weight."""
    from torchao.quantization import Int8Tensor, PerRow

    return Int8Tensor.from_hp(weight, PerRow())


def int4(state: State, *, size: int = 32, tiles: bool = False) -> QuantizedState:
    """What Int4WeightOnlyConfig makes on a GPU, plain or in the order of tinygemm's kernel."""
    made = QuantizedState({"quant_method": "torchao", "quant_type": {}})
    names = []
    for name, weight in state.items():
        names.append(name)
        if not is_quantized(name):
            made.tensors[name] = weight
            made.metadata[name] = json.dumps({"_type": "Tensor"})
            continue
        groups = weight.float().unflatten(1, (-1, size))
        low, high = groups.amin(-1), groups.amax(-1)
        scales = ((high - low).clamp(min=1e-6) / 15).bfloat16()
        offsets = (low + scales.float() * 8).bfloat16()
        steps = scales.float().unsqueeze(-1)
        values = ((groups - low.unsqueeze(-1)) / steps).round().clamp(0, 15).int() - 8
        made.floats[name] = (values * steps + offsets.float().unsqueeze(-1)).flatten(1)
        parts = (_tiles if tiles else _nibbles)(values.flatten(1), scales, offsets)
        path = name.removesuffix(".weight")
        made.tensors |= {f"{path}._weight_{part}": tensor for part, tensor in parts.items()}
        made.metadata[name] = json.dumps(
            {
                "_type": "Int4TilePackedTo4dTensor" if tiles else "Int4Tensor",
                "_data": {"block_size": [1, size], "shape": list(weight.shape)},
                "_tensor_data_names": list(parts),
            }
        )
    made.metadata["tensor_names"] = json.dumps(names)
    return made


def _nibbles(values: torch.Tensor, scales: torch.Tensor, offsets: torch.Tensor) -> State:
    both = (values[:, ::2] & 0xF) | ((values[:, 1::2] & 0xF) << 4)
    qdata = both.to(torch.uint8).view(torch.int8)
    return {"qdata": qdata, "scale": scales.T.contiguous(), "zero_point": offsets.T.contiguous()}


def _tiles(values: torch.Tensor, scales: torch.Tensor, offsets: torch.Tensor) -> State:
    """Word by word, as the CUDA kernel has it; inputs are padded to 1,024."""
    outputs, inputs = values.shape
    size = inputs // scales.shape[1]
    width = -(-inputs // 1024) * 1024
    whole = torch.zeros(outputs, width, dtype=torch.int64)
    whole[:, :inputs] = values + 8
    words = torch.zeros(outputs // 8, width // 128, 32, 4, dtype=torch.int64)
    lane = torch.arange(32)
    for n in range(outputs // 8):
        for k in range(width // 128):
            for pair in range(4):
                first = (k * 8 + pair * 2) * 16 + 2 * (lane % 4)
                for place, (tile, half, odd) in enumerate(
                    (t, h, o) for o in (0, 1) for t in (0, 1) for h in (0, 1)
                ):
                    chosen = whole[n * 8 + lane // 4, first + 16 * tile + 8 * half + odd]
                    words[n, k, :, pair] |= chosen << (4 * place)
    both = torch.zeros(width // size, outputs, 2, dtype=torch.bfloat16)
    both[: scales.shape[1], :, 0] = scales.T
    both[: scales.shape[1], :, 1] = offsets.T
    qdata = torch.where(words >= 2**31, words - 2**32, words).int()
    return {"qdata": qdata, "scale_and_zero": both}


def trained(state: State, *, size: int = 32) -> QuantizedState:
    """What torchao's quantization-aware training converts to; config.json says nothing of it."""
    made = QuantizedState(None)
    for name, weight in state.items():
        path = name.removesuffix(".weight")
        if not is_quantized(name):
            made.tensors[name] = weight
            continue
        found = rounded(weight, 4, size, symmetric=True)
        made.tensors |= {
            name: (found.values - 8).to(torch.int8),
            f"{path}.scales": found.scales.float(),
            f"{path}.zeros": torch.zeros(found.scales.shape),
        }
        made.floats[name] = found.floats
    return made


def fake_quantized(state: State, *, size: int = 32) -> QuantizedState:
    """What quantization-aware training saves before it is converted: floats of 4 bits."""
    made = QuantizedState(None)
    for name, weight in state.items():
        floats = rounded(weight, 4, size, symmetric=True).floats if is_quantized(name) else weight
        made.tensors[name] = floats.bfloat16() if is_quantized(name) else weight
        if is_quantized(name):
            made.floats[name] = made.tensors[name].float()
    return made


def save(made: QuantizedState, source: Path, folder: Path) -> Path:
    """Writes a checkpoint with the other files of the float one."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True)
    for path in source.iterdir():
        if path.name != "model.safetensors":
            shutil.copyfile(path, folder / path.name)
    config = json.loads((source / "config.json").read_text())
    if made.settings:
        config["quantization_config"] = made.settings
    (folder / "config.json").write_text(json.dumps(config))
    save_file(made.tensors, folder / "model.safetensors", made.metadata)
    return folder


FORMATS: dict[str, Callable[[State], QuantizedState]] = {
    "gptq": gptq,
    "gptq_v2": lambda s: gptq(s, version=2),
    "gptq_8": lambda s: gptq(s, bits=8, size=64),
    "gptq_asymmetric": lambda s: gptq(s, symmetric=False),
    "gptq_desc_act": lambda s: gptq(s, ordered=False),
    "gptq_16": lambda s: gptq(s, size=16),
    "gptq_asymmetric_16": lambda s: gptq(s, size=16, symmetric=False),
    "awq": awq,
    "awq_converted": awq_converted,
    "compressed": compressed,
    "compressed_channel": lambda s: compressed(s, size=None),
    "compressed_asymmetric": lambda s: compressed(s, symmetric=False),
    "compressed_8": lambda s: compressed(s, bits=8, size=None),
    "compressed_asymmetric_8": lambda s: compressed(s, bits=8, size=None, symmetric=False),
    "compressed_float8": lambda s: compressed(s, bits=8, size=None, floats=True),
    "torchao_intx": lambda s: torchao(s, intx),
    "torchao_intx_8": lambda s: torchao(s, lambda w: intx(w, bits=8, size=None)),
    "torchao_asymmetric": lambda s: torchao(s, lambda w: intx(w, symmetric=False)),
    "torchao_int8": lambda s: torchao(s, int8),
    "torchao_int4": int4,
    "torchao_int4_tiles": lambda s: int4(s, tiles=True),
    "trained": trained,
    "fake_quantized": fake_quantized,
}


def main(result: Path, folder: Path) -> None:
    """Makes and loads all formats of a small Llama, and writes as JSON what came of each."""
    from safetensors.torch import load_file

    from tests.support.language_models import save_llama

    source = save_llama(folder / "float", intermediate_size=192)
    state = load_file(source / "model.safetensors")
    torch.manual_seed(0)
    found = {name: _loaded(make(state), source, folder / name) for name, make in FORMATS.items()}
    programs = {name: _programs(folder / name) for name in ("gptq", "awq")}
    experts = _experts(folder)
    result.write_text(json.dumps({"loads": found, "programs": programs, "experts": experts}))


def perplexities(file: str, folder: Path, *names: str) -> dict[str, tuple[float, float]]:
    """Of checkpoints made from a model in GGUF: as floats, and quantized as an export does it."""
    loaded = _load(Path(file))
    source = folder / "float"
    loaded.model.config.save_pretrained(source)
    loaded.tokenizer.loaded.save_pretrained(source)
    state = {name: tensor.clone() for name, tensor in loaded.model.state_dict().items()}
    text = Path(CALIBRATION_TEXT).read_text()
    ids = torch.tensor(loaded.tokenizer.loaded(text)["input_ids"][:1024])
    found = {}
    for name in names:
        made = _load(save(FORMATS[name](state), source, folder / name))
        before = _perplexity(made.model, ids)
        root = torch.nn.Module()
        root.model = made.model
        sources: Any = {"forward": SimpleNamespace(module=root, exported=None)}
        quantize_layers(_spec(folder / name), sources, Activations(), made.stored_weights(), None)
        found[name] = (before, _perplexity(made.model, ids))
    return found


def _perplexity(model: Any, ids: torch.Tensor) -> float:
    with torch.no_grad():
        logits = model(ids[None]).logits[0, :-1]
    return float(torch.nn.functional.cross_entropy(logits, ids[1:]).exp())


def _experts(folder: Path) -> dict[str, Any]:
    """A Mixtral, whose experts transformers joins."""
    import transformers
    from safetensors.torch import load_file

    from tests.support.language_models import LLAMA

    config = transformers.MixtralConfig(**LLAMA, num_local_experts=2)
    transformers.MixtralForCausalLM(config).save_pretrained(folder / "mixtral")
    made = gptq(load_file(folder / "mixtral" / "model.safetensors"))
    loaded = _load(save(made, folder / "mixtral", folder / "mixtral_gptq"))
    joined = loaded.model.state_dict()["model.layers.0.mlp.experts.down_proj"][1]
    wanted = made.floats["model.layers.0.block_sparse_moe.experts.1.w2.weight"]
    off = float((joined - wanted).abs().max())
    return {"off": off, "layers": len(loaded.stored), "notes": loaded.notes}


def _programs(folder: Path) -> dict[str, Any]:
    """Programs of a checkpoint, with what it has quantized and without knowing of it."""
    from tests.support.quantized_text import exported, register_kernels

    register_kernels()
    found = {}
    for name in ("known", "unknown"):
        loaded = _load(folder)
        stored = loaded.stored_weights() if name == "known" else {}
        found[name] = exported("default", folder, loaded.model, stored=stored)
    return found


def _load(folder: Path) -> Any:
    return load_model(_spec(folder), lambda _, __: None)


def _spec(folder: Path) -> ExportSpec:
    export = {"backend": "xnnpack", "quantization": "8da4w", "embeddings": "8w"}
    model, generation = HfModel(folder=str(folder)), ExportGeneration(context=64)
    if folder.is_file():
        model = HfModel(folder=str(folder.parent), gguf=folder.name)
    return ExportSpec(**export, hf=model, generation=generation)


def _loaded(made: QuantizedState, source: Path, folder: Path) -> dict[str, Any]:
    loaded = _load(save(made, source, folder))
    weights = loaded.model.state_dict()
    off = max(float((weights[n] - floats).abs().max()) for n, floats in made.floats.items())
    stored = {}
    for weight in loaded.stored.values():
        fits = {scheme: weight.fits(scheme) for scheme in ("8da4w", "8da8w")}
        has = {"bits": weight.bits, "offsets": weight.offsets is not None}
        stored[weight.kind] = {**has, "group_size": weight.group_size, **fits}
    carried = [
        float((weights[f"{path}.weight"] - _floats(weight)).abs().max())
        for path, weight in loaded.stored.items()
        if weight.values is not None
    ]
    return {
        "off": off,
        "stored": stored,
        "layers": len(loaded.stored),
        "carried_off": max(carried, default=None),
        "notes": loaded.notes,
    }


def _floats(weight: Any) -> torch.Tensor:
    groups = weight.values.unflatten(1, (weight.scales.shape[1], -1)) * weight.scales.unsqueeze(-1)
    if weight.offsets is not None:
        groups = groups + weight.offsets.unsqueeze(-1)
    floats: torch.Tensor = groups.flatten(1)
    return floats


if __name__ == "__main__":
    result, folder = Path(sys.argv[1]), Path(sys.argv[2])
    if len(sys.argv) > 3:
        result.write_text(json.dumps(perplexities(sys.argv[3], folder, *sys.argv[4:])))
    else:
        main(result, folder)
