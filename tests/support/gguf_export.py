"""Loads and exports small models in GGUF in a process of its own, and writes what came of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader
from gguf.quants import dequantize

from etdeploy.core.values import silent
from etdeploy.export.derive import export_spec
from etdeploy.export.worker.language.load import LoadedModel, load_model
from etdeploy.export.worker.language.tokenizer import stop_ids
from etdeploy.recipe.load import load_recipe
from tests.support.gguf_files import HEADS, LAYERS, SHARED_HEADS, write_gguf
from tests.support.quantized_text import exported, register_kernels

KINDS = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q8_0")
PARTS = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def load(path: Path) -> LoadedModel:
    recipe = load_recipe("llm-xnnpack", [f"--model={path}", "--context=64"]).recipe
    return load_model(export_spec(recipe), silent)


def as_written(name: str, weight: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A layer's weight in the order of a file: of each head, outputs of its halves alternate."""
    heads = {"attn_q": HEADS, "attn_k": SHARED_HEADS}.get(name)
    if heads is None:
        return weight
    halves = weight.reshape(heads, 2, -1, weight.shape[1])
    order: np.ndarray[Any, Any] = halves.swapaxes(1, 2).reshape(weight.shape)
    return order


def found(kind: str, folder: Path) -> dict[str, Any]:
    path = write_gguf(folder / f"{kind}.gguf", kind)
    loaded = load(path)
    layers = {
        f"blk.{n}.{name}": (name, loaded.model.model.layers[n].get_submodule(part))
        for n in range(LAYERS)
        for name, part in PARTS.items()
    }
    off = 0.0
    for tensor in GGUFReader(path).tensors:
        name, layer = layers.get(tensor.name.removesuffix(".weight"), ("", None))
        if layer is not None:
            wanted = dequantize(tensor.data, tensor.tensor_type)
            off = max(
                off, float(abs(as_written(name, layer.weight.detach().numpy()) - wanted).max())
            )
    stored_off = 0.0
    for layer_path, weight in loaded.stored.items():
        if weight.values is not None and weight.scales is not None:
            steps, offsets = (
                torch.zeros(1) if each is None else each.repeat_interleave(32, dim=1)
                for each in (weight.scales, weight.offsets)
            )
            floats = weight.values * steps + offsets
            error = (floats - loaded.model.get_submodule(layer_path).weight).abs().max()
            stored_off = max(stored_off, float(error))
    tokenizer = loaded.tokenizer
    return {
        "off": off,
        "stored": len(loaded.stored),
        "fitting": sum(weight.fits("8da4w") for weight in loaded.stored.values()),
        "stored_off": stored_off,
        "ids": tokenizer.loaded("the 12")["input_ids"],
        "chat": tokenizer.loaded.apply_chat_template(
            [{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True
        ),
        "stops": stop_ids(loaded.model, tokenizer, loaded.vocabulary),
        "notes": loaded.notes,
    }


def program(kind: str, folder: Path) -> dict[str, Any]:
    """A program with the weights of the file, and how far its logits are from theirs."""
    loaded = load(folder / f"{kind}.gguf")
    return exported("default", folder, loaded.model, stored=loaded.stored_weights())


def main(result: Path, folder: Path) -> None:
    register_kernels()
    models = {kind: found(kind, folder) for kind in KINDS}
    result.write_text(json.dumps({"models": models, "program": program("Q4_0", folder)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
