"""Exports a tiny quantized language model in several ways, each step against the eager model.

`python -m tests.support.quantized_text FOLDER NAME...` writes one line of JSON at the end.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import executorch
import torch
import transformers
from executorch.runtime import Runtime
from torchao.quantization.granularity import PerGroup
from torchao.quantization.quant_api import Int8DynamicActivationIntxWeightConfig, quantize_

from etdeploy.export.worker.backends.base import Traced
from etdeploy.export.worker.failures import WorkerError
from etdeploy.export.worker.language.activations import (
    mean_squares,
    read_at_once,
    read_for_gradients,
)
from etdeploy.export.worker.language.experts import experts_routed
from etdeploy.export.worker.language.forward import own_attention
from etdeploy.export.worker.language.sources import generation_sources
from etdeploy.export.worker.language.texts import TokenizedText
from etdeploy.export.worker.lowering.lower import emit, lower
from etdeploy.export.worker.lowering.quantize import Quantized, quantize
from etdeploy.export.worker.lowering.scales import Activations, quantized_in_groups
from etdeploy.export.worker.lowering.stored import StoredWeight
from etdeploy.export.worker.lowering.weights import store_once
from etdeploy.export.worker.tracing.tensors import buffers_restored
from etdeploy.export.worker.tracing.trace import trace
from etdeploy.program.inspect import inspect_file
from tests.support.export import spec_of
from tests.support.language_models import spread_model

# ExecuTorch's Python runtime has no quantized kernels of its own; this registers them in it.
_KERNELS = Path(executorch.__path__[0]) / "lib" / "libexecutorch_kernels_quantized.so"
CONTEXT, TOKENS = 32, 24
EXPORTS: dict[str, dict[str, Any]] = {
    "8da8w": {"quantization": "8da8w"},
    "mixed": {
        "quantization": "8da4w",
        "embeddings": "4w",
        "overrides": {
            "lm_head": "8da8w",
            "model.layers.0.mlp.down_proj": "none",
            "model.layers.*.self_attn": {"quantization": "8da4w", "group_size": 64},
        },
    },
    "default": {"quantization": "8da4w"},
    "gptq": {
        "quantization": "8da4w",
        "rounding": "gptq",
        "calibration": "/here/text.txt",
        "generation": {"evaluate": "/here/text.txt"},
    },
    # Room for more than `v_proj`, which has 8 bits by default.
    "mixed bits": {
        "quantization": "8da4w",
        "target_bits": 5.5,
        "calibration": "/here/text.txt",
        "overrides": {"*.q_proj": "8da4w"},
    },
    "all in 4 bits": {
        "quantization": "8da4w",
        "overrides": {"lm_head": "8da4w", "*.v_proj": {"quantization": "8da4w", "group_size": 64}},
    },
    "floats": {},
    "int8_dynamic": {"quantization": "int8_dynamic"},
}
MISTAKES: dict[str, dict[str, Any]] = {
    "no such module": {"lm_haed": "8da8w"},
    "only a table": {"model.embed_tokens": "8da8w"},
    "nothing left": {"*": "none"},
}
_SIZES: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
}


def register_kernels() -> None:
    """Gives ExecuTorch's Python runtime the kernels that look up rows of quantized embeddings."""
    ctypes.CDLL(str(_KERNELS))


def tiny() -> Any:
    """A model with random weights, large enough that its logits differ from each other."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**_SIZES)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    for weight in model.parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=0.15)
    return model


def found(name: str, folder: Path) -> dict[str, Any]:
    """How far the program's logits are from the quantized model's, and what is in the program."""
    model = tiny()
    attention = model.config._attn_implementation
    if name == "gptq":
        return exported(name, folder, model, _read_later(model, attention))
    if name == "mixed bits":
        gradients = partial(read_for_gradients, model, attention, _TEXT)
        return exported(
            name, folder, model, replace(_activations(model, attention), gradients=gradients)
        )
    read = _activations(model, attention) if name == "default" else None
    return exported(name, folder, model, read)


def exported(
    name: str,
    folder: Path,
    model: Any,
    read: Activations | None = None,
    stored: Mapping[int, StoredWeight] = MappingProxyType({}),
) -> dict[str, Any]:
    """The same of a model, with what its linear layers are given and what they are stored as."""
    spec = spec_of({"model": {"hf": str(folder)}, "export": EXPORTS[name]})
    made = generation_sources(model, context=CONTEXT, prefill_tokens=8, path="fast")
    sources = {"decode": made.sources["decode"]}
    tokens = torch.randint(3, 128, (1, TOKENS), generator=torch.Generator().manual_seed(0))
    before = _eager(sources["decode"].module, tokens)
    own = Quantized(sources["decode"].module)
    quantized = quantize(spec, sources, activations=read, stored=stored).get("decode", own)
    wanted = _eager(quantized.module, tokens)
    path = folder / f"{name}.pte"
    _export(spec, sources, quantized.module, path)
    saved = store_once(path, least_bytes=1024)
    decode = Runtime.get().load_program(str(path)).load_method("decode")
    logits = torch.stack(
        [decode.execute((tokens[:, at : at + 1], torch.tensor([at])))[0][0] for at in range(TOKENS)]
    )
    [method] = inspect_file(path).methods
    return {
        "notes": quantized.notes,
        "saved": saved,
        "moved": float((before - wanted).abs().max()),
        "distance": float((logits - wanted).abs().max()),
        "largest": float(wanted.abs().max()),
        "cosine": float(torch.cosine_similarity(logits.flatten(), wanted.flatten(), dim=0)),
        "operators": [operator.name for operator in method.operators],
    }


_TEXT = TokenizedText("text.txt", "", (tuple(range(3, 128)), tuple(range(127, 3, -2))), whole=True)


def _activations(model: Any, attention: str) -> Activations:
    """Of a text, as an export reads one."""
    return Activations(mean_squares(model, attention, _TEXT), "text.txt")


def _read_later(model: Any, attention: str) -> Activations:
    return Activations(origin="text.txt", read=partial(read_at_once, model, attention, _TEXT))


def told_of_layers() -> dict[str, Any]:
    """What is known of the inputs of layers, some of experts, while a model reads a text once."""
    sizes = {**_SIZES, "num_local_experts": 8, "num_hidden_layers": 2}
    model = spread_model("Mixtral", sizes, std=0.2)
    attention = model.config._attn_implementation
    generation_sources(model, context=128, prefill_tokens=8, path="fast", conditional=True)
    linears = {n: m for n, m in model.named_modules() if isinstance(m, torch.nn.Linear)}
    names = {id(module): name for name, module in linears.items()}
    wanted = [module for name, module in linears.items() if "o_proj" not in name]
    tokens: dict[str, int] = {}
    squares: dict[str, torch.Tensor] = {}

    def seen(layer: torch.nn.Linear, inputs: torch.Tensor) -> None:
        tokens[names[id(layer)]] = len(inputs)
        squares[names[id(layer)]] = inputs.square().mean(0)
        if names[id(layer)].endswith("v_proj"):
            layer.weight.data *= 0

    before = mean_squares(model, attention, _TEXT)
    ids = torch.tensor(_TEXT.parts[:1])
    with torch.no_grad(), own_attention(model, attention):
        separate = model(ids).logits
        with experts_routed(model):
            routed = model(ids).logits
    read_at_once(model, attention, _TEXT, wanted, seen)
    after = mean_squares(model, attention, _TEXT)
    later = "model.layers.1.self_attn.q_proj"
    return {
        "text": sum(map(len, _TEXT.parts)),
        "tokens": tokens,
        "changed": float((after[id(linears[later])] - before[id(linears[later])]).abs().max()),
        "distance": float((after[id(linears[later])] - squares[later]).abs().max()),
        "routed": float((routed - separate).abs().max()),
        "experts": model.config._experts_implementation,
    }


def scales() -> dict[str, Any]:
    """Errors of a layer's outputs with torchao's scales and with ours, and what ours look like."""
    generator = torch.Generator().manual_seed(0)
    layer = torch.nn.Linear(96, 4000, bias=False)
    layer.weight.data = torch.randn(4000, 96, generator=generator) ** 3
    layer.weight.data[7, 32:64] = 0
    inputs = torch.randn(512, 96, generator=generator) * torch.rand(96, generator=generator) ** 4
    squares, weight = inputs.square().mean(0), layer.weight.detach().clone()
    config = Int8DynamicActivationIntxWeightConfig(
        weight_dtype=torch.int4, weight_granularity=PerGroup(32)
    )
    quantize_(layer, config)
    ours = {
        "weights": quantized_in_groups(weight, 32, None),
        "activations": quantized_in_groups(weight, 32, squares),
    }
    tensors = {"torchao": layer.weight, **ours}
    best = ours["activations"]
    return {
        "weight_error": {
            n: float((t.dequantize() - weight).square().sum()) for n, t in tensors.items()
        },
        "output_error": {
            n: float((inputs @ (t.dequantize() - weight).T).square().mean())
            for n, t in tensors.items()
        },
        "positive": bool((best.scale > 0).all()),
        "bfloat16": bool((best.scale.bfloat16().float() == best.scale).all()),
        "range": [int(best.qdata.min()), int(best.qdata.max())],
        "zeros": int(best.qdata[7, 32:64].abs().max()),
        "alike": torch.equal(
            best.qdata[3000:], quantized_in_groups(weight[3000:], 32, squares).qdata
        ),
        "dead": torch.equal(
            ours["weights"].scale, quantized_in_groups(weight, 32, torch.zeros(96)).scale
        ),
    }


def _eager(module: Any, tokens: torch.Tensor) -> torch.Tensor:
    with torch.no_grad(), buffers_restored([buffer for _, buffer in module.named_buffers()]):
        steps = [module(tokens[:, at : at + 1], torch.tensor([at])) for at in range(TOKENS)]
        return torch.cat(steps).clone()


def _export(spec: Any, sources: Any, module: Any, path: Path) -> None:
    source = sources["decode"]
    program = trace(module, source.inputs, source.dynamic_shapes, strict=False)
    traced = {"decode": Traced(module, source, program)}
    with path.open("wb") as stream:
        emit(spec, lower(spec, traced), traced).write_to_file(stream)


def refused(name: str, folder: Path) -> list[str | None]:
    """What the user is told of overrides that cannot apply, and where."""
    export = {"quantization": "8da4w", "embeddings": "8w", "overrides": MISTAKES[name]}
    spec = spec_of({"model": {"hf": str(folder)}, "export": export})
    made = generation_sources(tiny(), context=CONTEXT, prefill_tokens=8, path="fast")
    try:
        quantize(spec, made.sources)
    except WorkerError as error:
        return [error.failure.message, error.failure.file, error.failure.remedy]
    return []


def _told(name: str, folder: Path) -> Any:
    if name in ("scales", "told of layers"):
        return scales() if name == "scales" else told_of_layers()
    return refused(name, folder) if name in MISTAKES else found(name, folder)


if __name__ == "__main__":
    register_kernels()
    told = {name: _told(name, Path(sys.argv[1])) for name in sys.argv[2:]}
    sys.stdout.write("\n" + json.dumps(told) + "\n")
