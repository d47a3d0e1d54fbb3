"""Makes a tiny checkpoint as Meta publishes them, and continues a text with it eagerly.

`python -m tests.support.own_exporter FOLDER ID...` writes the checkpoint, its params and an
LlmConfig into the folder, and prints the ids of the most probable tokens after those that are
given, as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from executorch.examples.models.llama.llama_transformer import construct_transformer
from executorch.examples.models.llama.model_args import ModelArgs

NEW_TOKENS = 8
PARAMS: dict[str, Any] = {
    "dim": 32, "n_layers": 1, "n_heads": 4, "n_kv_heads": 2, "vocab_size": 128, "hidden_dim": 64,
    "multiple_of": 32, "norm_eps": 1e-5, "rope_theta": 10000.0,
}  # fmt: skip
CONFIG = """\
base:
  model_class: llama2
  checkpoint: consolidated.00.pth
  params: params.json
  metadata: '{"get_bos_id": 1, "get_eos_ids": [2, 3]}'
model:
  use_kv_cache: true
export:
  max_seq_length: 32
  max_context_length: 32
  output_name: reference.pte
backend:
  xnnpack:
    enabled: true
    extended_ops: true
"""


def continued(model: torch.nn.Module, ids: list[int]) -> list[int]:
    """The most probable tokens after a text, which the model reads anew for each."""
    text = [*ids]
    with torch.no_grad():
        for _ in range(NEW_TOKENS):
            text.append(int(model(torch.tensor([text]))[0].argmax()))
    return text[len(ids) :]


def main(folder: Path, ids: list[int]) -> None:
    """See above."""
    torch.manual_seed(0)
    model = construct_transformer(ModelArgs(max_seq_len=32, max_context_len=32, **PARAMS)).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:  # so that logits differ from each other
                weight.normal_(std=0.2)
    torch.save(model.state_dict(), folder / "consolidated.00.pth")
    (folder / "params.json").write_text(json.dumps(PARAMS))
    (folder / "config.yaml").write_text(CONFIG)
    sys.stdout.write(json.dumps(continued(model, ids)) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), [int(text) for text in sys.argv[2:]])
