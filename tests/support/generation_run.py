"""Exports tiny language models and runs them, each step against the model's own forward.

`python -m tests.support.generation_run FOLDER NAME...` writes one line of JSON at the end. A name
is that of a model, with `-kernel` where its attention is etdeploy's operator, and the bits of its
cache, if they are fewer than 32; and with `-window` where tokens see sinks and a window.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from executorch.runtime import Runtime

from etdeploy.export.worker.language.attention import WINDOWED
from etdeploy.export.worker.language.cache_places import TokenWindow
from etdeploy.export.worker.language.forward import OwnForward, own_attention
from etdeploy.export.worker.language.methods import methods_for
from etdeploy.export.worker.language.sources import generation_sources
from etdeploy.program.inspect import inspect_file
from tests.support.export import spec_of
from tests.support.language_models import spread_model
from tests.support.lowered_sources import lowered
from tests.support.own_kernels import load_own_kernels

# A ring of 64 places, which the prefill goes around, too.
PART, TOKENS, WINDOW, SINKS = 16, 150, 24, 3
# Three segments of the cache, the last from 512 on, and two.
CONTEXTS = {"Llama": 2048, "Qwen3": 512, "Gemma3Text": 512}
_FURTHER = 540
_SIZES: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "Llama": {"num_hidden_layers": 1},
    "Qwen3": {"num_hidden_layers": 1, "head_dim": 32},
    "Gemma3Text": {
        "num_hidden_layers": 2,
        "head_dim": 16,
        "sliding_window": WINDOW,
        "layer_types": ["sliding_attention", "full_attention"],
    },
}


def tiny(name: str) -> Any:
    """A model with random weights, large enough that its logits differ from each other."""
    return spread_model(name, {**_SIZES, **CONFIGS[name]}, std=0.15)


def found(name: str, folder: Path) -> dict[str, Any]:
    """How far the program's logits are from the model's, and what is in the program."""
    kind, *options = name.split("-")
    attention = next((each for each in options if each.startswith("kernel")), "")
    bits = int(attention.removeprefix("kernel") or 32)
    window = TokenWindow(WINDOW, SINKS) if "window" in options else None
    model, context = tiny(kind), 512 if window else CONTEXTS[kind]
    tokens = torch.randint(3, 128, (1, _FURTHER))
    with torch.no_grad():
        wanted = floats = model(input_ids=tokens, use_cache=False).logits[0]
    if bits < 32:
        wanted = OwnForward(model, bits=bits).each(tokens[0].tolist())
    made = generation_sources(
        model,
        context=context,
        prefill_tokens=PART,
        path="auto",
        attention="kernel" if attention else "stock",
        bits=bits,
        window=window,
    )
    if window:
        with own_attention(model, WINDOWED):
            wanted = OwnForward(model).each(tokens[0].tolist())
    path = folder / f"{name}.pte"
    with path.open("wb") as stream:
        lowered(spec_of({"model": {"hf": str(folder)}}), made.sources).write_to_file(stream)
    program = Runtime.get().load_program(str(path))
    methods = {method.name: program.load_method(method.name) for method in made.methods}

    def distance(start: int, end: int, capacity: int = 0) -> float:
        """By the method that the runner takes, or one of at least this capacity."""
        role = "decode" if end == start + 1 else "prefill"
        serving = [m for m in made.methods if m.role == role and m.capacity >= max(end, capacity)]
        method = methods[min(serving, key=lambda m: m.capacity).name]
        logits = method.execute((tokens[:, start:end].contiguous(), torch.tensor([start])))[0]
        return float((logits[0] - wanted[end - 1]).abs().max())

    prefill = [distance(start, start + PART) for start in range(0, 96, PART)]
    prefill.append(distance(96, 98))  # fewer than it takes
    decode = [distance(at, at + 1) for at in range(98, TOKENS)]
    # Set back, as far as that is possible, also across the end of a segment.
    back = 30 if made.rewind is None else TOKENS - made.rewind
    again = [distance(at, at + 1) for at in range(back, 120)]
    again += [distance(120, 120 + PART), distance(136, 137, context)]
    end = 137
    if context > _FURTHER:
        parts = range(end, _FURTHER - PART, PART)
        prefill += [distance(start, start + PART) for start in parts]
        end = parts[-1] + PART
        decode += [distance(at, at + 1) for at in range(end, _FURTHER)]
    again += [distance(0, PART), distance(PART, PART + 1)]
    inspected = inspect_file(path).methods
    operators = {m.name: [o.name for o in m.operators] for m in inspected}
    # Of the method that looks at all positions.
    buffers = dict(made.sources["decode"].module.cache.named_buffers()).items()
    written = [b.nbytes for key, b in buffers if key.startswith(("key_", "value_"))]
    return {
        "path": made.path,
        "attention": made.attention,
        "prefill": max(prefill),
        "decode": max(decode),
        "rounding": float((wanted - floats).abs().max()),
        "again": max(again),
        "rewind": made.rewind,
        "places": [buffer.shape[1] for buffer in _keys(made.sources["decode"].module)],
        "furthest": end,
        "cache_bytes": sum(written),
        "planned_bytes": {m.name: m.planned_memory_bytes for m in inspected},
        "operators": operators,
    }


def _keys(module: torch.nn.Module) -> list[torch.Tensor]:
    return [buffer for name, buffer in module.cache.named_buffers() if name.startswith("key_")]


def named(context: int) -> list[str]:
    """The methods of a program with the stock attention."""
    return [method.name for method in methods_for(context, 128)]


if __name__ == "__main__":
    load_own_kernels(Path(sys.argv[1]))
    told: dict[str, Any] = {name: found(name, Path(sys.argv[1])) for name in sys.argv[2:]}
    told["methods"] = {context: named(context) for context in (64, 256, 512, 2048, 4096)}
    sys.stdout.write("\n" + json.dumps(told) + "\n")
