"""Writes small language models of several families, for Qualcomm's compiler.

python -m tests.support.qnn_language FOLDER NAME...
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

# The HTP computes a norm over 32 values or fewer wrongly: docs/qnn.md.
_HEAD = 64
_WINDOW = {
    "num_hidden_layers": 2,
    "sliding_window": 24,
    "layer_types": ["sliding_attention", "full_attention"],
}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {"head_dim": _HEAD}),
    "smollm3": ("SmolLM3", {"num_hidden_layers": 2, "no_rope_layers": [1, 0]}),
    "phi": ("Phi", {}),
    "phi3": ("Phi3", {"pad_token_id": 0}),
    "gemma2": ("Gemma2", {**_WINDOW, "head_dim": 16, "query_pre_attn_scalar": 16}),
    "gemma3": ("Gemma3Text", {**_WINDOW, "head_dim": _HEAD}),
    "granite": ("Granite", {}),
}
# Whose keys and values are no inputs and outputs.
_WITH_STATES: dict[str, tuple[str, dict[str, Any]]] = {
    "lfm2": (
        "Lfm2",
        {
            "num_hidden_layers": 2,
            "layer_types": ["conv", "full_attention"],
            "block_auto_adjust_ff_dim": False,
        },
    ),
}


def main(folder: Path, names: list[str]) -> None:
    from tests.support.language_models import LLAMA, save_tokenizer, spread_model

    for name in names:
        kind, more = {**FAMILIES, **_WITH_STATES}[name]
        config = {**LLAMA, "num_hidden_layers": 1, "tie_word_embeddings": False, **more}
        spread_model(kind, config, std=0.15).save_pretrained(folder / name)
        save_tokenizer(folder / name)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
