"""Small language models in GGUF, written with the package gguf as llama.cpp's converter would."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize

HIDDEN, LAYERS, HEADS, SHARED_HEADS, INNER, CONTEXT = 64, 2, 4, 2, 128, 256
END = "<|end|>"
TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
# Shapes as in a model of transformers: outputs first.
SHAPES: Mapping[str, tuple[int, ...]] = {
    "attn_norm.weight": (HIDDEN,),
    "attn_q.weight": (HIDDEN, HIDDEN),
    "attn_k.weight": (HIDDEN * SHARED_HEADS // HEADS, HIDDEN),
    "attn_v.weight": (HIDDEN * SHARED_HEADS // HEADS, HIDDEN),
    "attn_output.weight": (HIDDEN, HIDDEN),
    "ffn_norm.weight": (HIDDEN,),
    "ffn_gate.weight": (INNER, HIDDEN),
    "ffn_up.weight": (INNER, HIDDEN),
    "ffn_down.weight": (HIDDEN, INNER),
}


def byte_tokens() -> list[str]:
    """A token for each byte, one of two letters, and the end, in GPT-2's spelling."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    other = [byte for byte in range(256) if byte not in plain]
    letters = {byte: chr(byte) for byte in plain}
    letters |= {byte: chr(256 + place) for place, byte in enumerate(other)}
    return [*(letters[byte] for byte in range(256)), "th", END]


VOCABULARY = len(byte_tokens())


def tensors(seed: int = 0, vocabulary: int = VOCABULARY) -> dict[str, np.ndarray[Any, Any]]:
    """Random weights; norms are near one."""
    random = np.random.default_rng(seed)
    shapes = {f"blk.{n}.{name}": shape for n in range(LAYERS) for name, shape in SHAPES.items()}
    shapes |= {"token_embd.weight": (vocabulary, HIDDEN), "output_norm.weight": (HIDDEN,)}
    return {
        name: (random.normal(0, 0.2, shape) + (len(shape) == 1)).astype(np.float32)
        for name, shape in shapes.items()
    }


def write_gguf(
    path: Path,
    kind: str = "Q4_0",
    *,
    architecture: str = "llama",
    weights: Mapping[str, np.ndarray[Any, Any]] | None = None,
    kinds: Mapping[str, str] | None = None,
    tokens: list[str] | None = None,
    metadata: Mapping[str, Any] | None = None,
    template: str | None = TEMPLATE,
) -> Path:
    """Writes a model whose matrices are of a type.

    Args:
        path: The file.
        kind: Of matrices, like `Q4_0`.
        architecture: Its name in the metadata.
        weights: By name; those of `tensors` by default.
        kinds: Of matrices that differ.
        tokens: The vocabulary; an empty one is no tokenizer.
        metadata: More keys, or other values: integers, floats, or texts.
        template: Of chats; None for none.
    """
    writer = GGUFWriter(path, architecture)
    written = {
        "context_length": CONTEXT,
        "embedding_length": HIDDEN,
        "block_count": LAYERS,
        "feed_forward_length": INNER,
        "attention.head_count": HEADS,
        "attention.head_count_kv": SHARED_HEADS,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 10000.0,
        "rope.dimension_count": HIDDEN // HEADS,
    }
    for key, value in written.items():
        _add(writer, f"{architecture}.{key}", value)
    for key, value in (metadata or {}).items():
        _add(writer, key, value)
    tokens = byte_tokens() if tokens is None else tokens
    if tokens:
        _add_tokenizer(writer, tokens, template)
    for name, weight in (tensors() if weights is None else weights).items():
        own = (kinds or {}).get(name, kind) if weight.ndim == 2 else "F32"
        number = GGMLQuantizationType[own]
        stored = weight if own == "F32" else quantize(weight, number)
        writer.add_tensor(name, stored, raw_dtype=None if own in ("F32", "F16") else number)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tokenizer(writer: GGUFWriter, tokens: list[str], template: str | None) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token == END else 1 for token in tokens])
    writer.add_token_merges(["t h"])
    if END in tokens:
        writer.add_eos_token_id(tokens.index(END))
    if template:
        writer.add_chat_template(template)


def _add(writer: GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_uint32(key, value)
