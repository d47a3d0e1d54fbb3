"""Checkpoints of zeros, written without PyTorch: for what is read of files only."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 8,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "max_position_embeddings": 256,
}
SHAPES = {"model.embed_tokens.weight": (16, 8), "lm_head.weight": (16, 8)}


def write_checkpoint(
    folder: Path, shapes: Mapping[str, tuple[int, ...]] = SHAPES, **config: Any
) -> Path:
    """Writes config.json and model.safetensors, and returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {name: value for name, value in {**LLAMA, **config}.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(content))
    write_safetensors(folder / "model.safetensors", shapes)
    return folder


def write_adapter(folder: Path, **config: Any) -> Path:
    """Writes a LoRA adapter of peft for the weights of `write_checkpoint`, and returns the folder.

    A value that is None leaves the key out.
    """
    folder.mkdir(parents=True, exist_ok=True)
    content = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, **config}
    content = {name: value for name, value in content.items() if value is not None}
    (folder / "adapter_config.json").write_text(json.dumps(content))
    head = {"A": (4, 8), "B": (16, 4)}
    matrices = {f"base_model.model.lm_head.lora_{n}.weight": shape for n, shape in head.items()}
    write_safetensors(folder / "adapter_model.safetensors", matrices)
    return folder


_SIZES = {"F32": 4, "I32": 4, "F16": 2, "I64": 8, "I8": 1, "F8_E4M3": 1, "U8": 1}


def write_safetensors(
    path: Path,
    shapes: Mapping[str, tuple[int, ...]] = SHAPES,
    types: Mapping[str, str] | None = None,
    metadata: Mapping[str, str] | None = None,
    data: Mapping[str, bytes] | None = None,
) -> None:
    """Writes tensors of zeros, or of `data`, in 32-bit floats or `types`."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt", **(metadata or {})}}
    content, end = [], 0
    for name, shape in shapes.items():
        kind, given = (types or {}).get(name, "F32"), (data or {}).get(name, b"")
        content.append((end, given))
        begin, end = end, end + (len(given) or _SIZES[kind] * math.prod(shape))
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    with path.open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        for begin, given in content:
            stream.seek(8 + len(text) + begin)
            stream.write(given)
        stream.truncate(8 + len(text) + end)  # zeros take no room
