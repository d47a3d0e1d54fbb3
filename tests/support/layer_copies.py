"""Lowers small language models of several layers, with and without copies of layers.

`python -m tests.support.layer_copies NAME...` writes one line of JSON at the end: of each model,
why its layers were not copied, and what differs between both programs and ETRecords.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal
from zipfile import ZipFile

import torch

from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.backends.base import Traced, lowering_of
from etdeploy.export.worker.language.layer_copies import LayerCopies
from etdeploy.export.worker.language.sources import generation_sources
from etdeploy.export.worker.loading.source import MethodSource
from etdeploy.export.worker.lowering.linear_kernel import linears_in_kernel
from etdeploy.export.worker.lowering.lower import emit, lower
from etdeploy.export.worker.lowering.quantize import quantize
from etdeploy.export.worker.rewrites.base import Log
from etdeploy.export.worker.tracing.trace import trace, use_known_operators
from tests.support import language_families
from tests.support.export import spec_of
from tests.support.language_models import spread_model


@dataclass(frozen=True)
class Layered:
    """A family with its number of layers, and how it is exported.

    `changed` sets an attribute of one layer's attention; `finer` are modules in 8 bits. With
    `linears`, etdeploy's kernel computes the linear layers.
    """

    kind: str
    layers: int
    config: dict[str, Any] = field(default_factory=dict)
    scheme: str = "8da4w"
    path: Literal["auto", "plain"] = "auto"
    attention: Literal["stock", "kernel"] = "kernel"
    layout: Literal["etdeploy", "executorch"] = "etdeploy"
    context: int = 32
    bits: int = 32
    methods: tuple[str, ...] = ("decode",)
    changed: tuple[int, str, Any] | None = None
    finer: tuple[str, ...] = ()
    linears: bool = False


def _family(name: str, layers: int, config: dict[str, Any] | None = None, **given: Any) -> Layered:
    family = language_families.FAMILIES[name]
    return Layered(family.kind, layers, {**family.config, **(config or {})}, **given)


_SLIDING, _FULL = "sliding_attention", "full_attention"
_GEMMA = {
    "head_dim": 32,
    "sliding_window": 8,
    "layer_types": [_SLIDING, _SLIDING, _FULL] * 2 + [_SLIDING],
}
_BOTH = ("prefill", "decode")
_LINEAR = "linear_attention"
MODELS = {
    # The first, two that are alike, and one that is a copy.
    "llama": Layered("Llama", 4),
    "llama-methods": Layered("Llama", 5, methods=_BOTH),
    "llama-stock": Layered(
        "Llama", 4, attention="stock", context=512, methods=("prefill", "decode_128", "decode")
    ),
    "llama-plain": Layered("Llama", 4, path="plain"),
    "llama-executorch": Layered("Llama", 4, layout="executorch"),
    "llama-floats": Layered("Llama", 4, scheme="none"),
    "llama-int8": Layered("Llama", 4, bits=8, methods=_BOTH),
    "llama-8da8w": Layered("Llama", 4, {"tie_word_embeddings": True}, scheme="8da8w"),
    "llama-linears": Layered("Llama", 4, methods=_BOTH, linears=True),
    # Two layers differ from the others alike, one alone, in their weights.
    "llama-mixed": Layered(
        "Llama", 8, methods=_BOTH,
        finer=("*.2.self_attn.k_proj", "*.5.self_attn.k_proj", "*.4.mlp.down_proj"),
    ),
    "llama-changed": Layered("Llama", 4, {"head_dim": 16}, changed=(3, "scaling", 0.5)),
    "gemma3": Layered("Gemma3Text", 7, _GEMMA, methods=_BOTH),
    "gemma3-plain": Layered("Gemma3Text", 7, _GEMMA, path="plain"),
    "gemma2": _family("gemma2", 6, {"layer_types": [_SLIDING, _FULL] * 3}),
    "qwen2.5": _family("qwen2.5", 4),
    "qwen3": Layered("Qwen3", 4, {"head_dim": 32}),
    "phi": _family("phi", 4),
    "phi3": _family("phi3", 4),
    "smollm3": _family("smollm3", 9, {"no_rope_layers": [1, 1, 1, 0] * 2 + [1]}),
    "granite": _family("granite", 4),
    "lfm2": _family("lfm2", 7, {"layer_types": ["conv", "conv", _FULL] * 2 + ["conv"]}),
    "mamba": _family("mamba", 4),
    "mamba2": _family("mamba2", 4),
    "falcon-mamba": _family("falcon-mamba", 4),
    "jamba": _family("jamba", 6),
    "falcon-h1": _family("falcon-h1", 4),
    "qwen3-next": _family("qwen3-next", 6, {"layer_types": [_LINEAR, _FULL] * 3}),
    "granite-hybrid": _family("granite-hybrid", 6, {"layer_types": ["mamba", "attention"] * 3}),
    "mixtral": _family("mixtral", 4),
    "qwen2-moe": _family("qwen2-moe", 4),
    "qwen3-moe": _family("qwen3-moe", 4),
    # The first layer has no experts.
    "deepseek-v2": _family("deepseek-v2-8da4w", 5, {"first_k_dense_replace": 1}),
    "mixtral-plain": _family("mixtral-plain", 4, path="plain"),
    # Each keeps the states of all layers in one tensor.
    "rwkv": _family("rwkv", 4),
    "xlstm": _family("xlstm", 4),
    "recurrent-gemma": _family("recurrent-gemma", 6),
}  # fmt: skip


def both_ways(model: Layered) -> dict[str, Any]:
    """Why layers were not copied, and what differs."""
    config = {**language_families.SIZES, **model.config, "num_hidden_layers": model.layers}
    made = spread_model(model.kind, config, std=0.2)
    if model.changed:
        layer, name, value = model.changed
        setattr(made.model.layers[layer].self_attn, name, value)
    export = {
        "quantization": model.scheme,
        "overrides": dict.fromkeys(model.finer, "8da8w"),
        "generation": {"context": model.context},
    }
    spec = spec_of({"model": {"hf": "org/model"}, "export": export})
    sources = generation_sources(
        made,
        context=model.context,
        prefill_tokens=8,
        path=model.path,
        attention=model.attention,
        layout=model.layout,
        bits=model.bits,
        conditional=lowering_of(spec).conditional,
    ).sources
    sources = {n: s for n, s in sources.items() if n in model.methods or len(sources) == 1}
    if model.scheme != "none":
        quantize(spec, sources)
    modules = {name: source.module for name, source in sources.items()}
    inputs = {name: source.inputs.args for name, source in sources.items()}
    with linears_in_kernel(
        modules.values() if model.linears else (), Log(("linears",)).of("linears")
    ):
        return _compared(spec, sources, modules, inputs)


def _compared(
    spec: ExportSpec,
    sources: Mapping[str, MethodSource],
    modules: Mapping[str, torch.nn.Module],
    inputs: Mapping[str, Any],
) -> dict[str, Any]:
    copies = LayerCopies.of(modules, inputs)
    chosen = {name: each.chosen for name, each in copies.templates.items()}
    if not chosen:  # both ways are the same
        return {"chosen": {}, "misfit": copies.misfit}
    programs, records = zip(
        *(_lowered(spec, sources, each) for each in (copies, LayerCopies())), strict=True
    )
    return {
        "chosen": chosen,
        "misfit": copies.misfit,
        "digests": [hashlib.sha256(each).hexdigest() for each in programs],
        "differing": list(_differing(*records)),
    }


def _lowered(
    spec: ExportSpec, sources: Mapping[str, MethodSource], copies: LayerCopies
) -> tuple[bytes, dict[str, Any]]:
    """The program and the parts of its ETRecord."""

    def trace_all(around: Any) -> dict[str, Traced]:
        traced = {}
        for name, source in sources.items():
            with around(name):
                program = trace(source.module, source.inputs, source.dynamic_shapes, strict=False)
            use_known_operators(program)
            traced[name] = Traced(source.module, source, program)
        return traced

    edge, traced = copies.lowered(copies.traced(trace_all), trace_all, partial(lower, spec))
    manager = emit(spec, edge, traced)
    program, record = io.BytesIO(), io.BytesIO()
    manager.write_to_file(program)
    manager.get_etrecord().save(record)
    return program.getvalue(), _read(record)


def _read(stream: Any) -> dict[str, Any]:
    """The parts of an ETRecord."""
    with ZipFile(stream) as record:
        return {name: _part(name, record.read(name)) for name in record.namelist()}


_BINARY = ("state_dict", "constants", "example_inputs")
# Of a copy, `from_node` and `torch_fn` name nodes of the layer that it is copied from. Nothing is
# trained, and not all layers have the same `requires_grad`.
_OF_TEMPLATE = ("from_node", "torch_fn", "requires_grad")
# The number of the object, and of the traced program a buffer that no node reads, which ExecuTorch
# drops as it lowers.
_UNREAD = (
    "/export_graph_id",
    "/exported_program_constants/model.model.rotary_emb.original_inv_freq",
)


def _part(name: str, content: bytes) -> Any:
    if name.endswith(_BINARY):
        return torch.load(io.BytesIO(content), weights_only=False) if content else None
    found: Any = json.loads(content) if content[:1] in (b"{", b"[") else content
    return _renamed(found) if name == "exported_program" else found


def _renamed(program: dict[str, Any]) -> Any:
    """With the number of each node for its name: tracing counts nodes that it drops, too."""
    nodes = program["graph_module"]["graph"]["nodes"]
    # What an operator with several results gives is named by the nodes that take each.
    named = re.findall(r'"(?:name|as_name)": "(\w+)"', json.dumps([n["outputs"] for n in nodes]))
    names = (*(node["name"] for node in nodes), *named)
    numbers = {name: f"node {number}" for number, name in enumerate(dict.fromkeys(names))}

    def renamed(value: Any) -> Any:
        if isinstance(value, dict):
            return {numbers.get(name, name): renamed(each) for name, each in value.items()}
        if isinstance(value, list):
            return [renamed(each) for each in value]
        return numbers.get(value, value) if isinstance(value, str) else value

    return renamed(program)


def _differing(one: Any, other: Any, path: str = "") -> Iterator[str]:
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for key in {**one, **other}:
            if key not in _OF_TEMPLATE and f"{path}/{key}" not in _UNREAD:
                yield from _differing(one.get(key), other.get(key), f"{path}/{key}")
    elif type(one) is type(other) in (list, tuple) and len(one) == len(other):
        for index, (a, b) in enumerate(zip(one, other, strict=True)):
            yield from _differing(a, b, f"{path}/{index}")
    elif isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        yield from _differing_tensors(one, other, path)
    elif one != other:
        yield f"{path}: {str(one)[:200]} / {str(other)[:200]}"


def _differing_tensors(one: Any, other: Any, path: str) -> Iterator[str]:
    alike = type(one) is type(other) and one.dtype == other.dtype
    if alike and hasattr(one, "__tensor_flatten__"):  # quantized
        for part in one.__tensor_flatten__()[0]:
            yield from _differing(getattr(one, part), getattr(other, part), f"{path}.{part}")
    elif not alike or not torch.equal(one, other):
        yield f"{path}: {getattr(one, 'shape', one)} / {getattr(other, 'shape', other)}"


if __name__ == "__main__":
    told = {}
    for word in sys.argv[1:]:
        told[word] = both_ways(MODELS[word])
        sys.stderr.write(f"{word}: {json.dumps(told[word])[:2000]}\n")
    sys.stdout.write("\n" + json.dumps(told) + "\n")
