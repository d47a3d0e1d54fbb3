"""Makes a tiny checkpoint as Meta publishes them, and continues a text with it eagerly.

`python -m tests.support.own_exporter FOLDER TEXT` writes the checkpoint, its params, a tokenizer
and an LlmConfig into the folder, and prints the ids of the most probable tokens after the text, as
JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import sentencepiece
import torch
from executorch.examples.models.llama.llama_transformer import construct_transformer
from executorch.examples.models.llama.model_args import ModelArgs

NEW_TOKENS = 8
PARAMS: dict[str, Any] = {
    "dim": 32, "n_layers": 1, "n_heads": 4, "n_kv_heads": 2, "vocab_size": 304, "hidden_dim": 64,
    "multiple_of": 32, "norm_eps": 1e-5, "rope_theta": 10000.0,
}  # fmt: skip
CONFIG = """\
base:
  model_class: llama2
  checkpoint: consolidated.00.pth
  params: params.json
  tokenizer_path: tokenizer.model
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


def text_ids(folder: Path, text: str) -> list[int]:
    """Writes a tokenizer as Llama 2 has it; gives the ids of a text."""
    with (folder / "tokenizer.model").open("wb") as stream:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(["the king is in the thing", "hello singing world"] * 20),
            model_writer=stream, vocab_size=300, model_type="bpe", byte_fallback=True,
            minloglevel=9,
        )  # fmt: skip
    model: Any = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    return [model.bos_id(), *model.encode(text)]


def continued(model: torch.nn.Module, ids: list[int]) -> list[int]:
    """The most probable tokens after a text, which the model reads anew for each."""
    text = [*ids]
    with torch.no_grad():
        for _ in range(NEW_TOKENS):
            text.append(int(model(torch.tensor([text]))[0].argmax()))
    return text[len(ids) :]


def main(folder: Path, text: str) -> None:
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
    sys.stdout.write(json.dumps(continued(model, text_ids(folder, text))) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
