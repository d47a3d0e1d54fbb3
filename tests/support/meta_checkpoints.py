"""Checkpoints of Meta and torchtune, converted, against ExecuTorch's own Llama.

`python -m tests.support.meta_checkpoints FOLDER` prints, as JSON, the largest difference of the
logits by kind of checkpoint, what is said of checkpoints that do not fit their params, and texts of
which a converted tokenizer makes other ids than its library.
"""

from __future__ import annotations

import json
import sys
from base64 import b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import sentencepiece
import tiktoken
import torch
from executorch.examples.models.llama.llama_transformer import construct_transformer
from executorch.examples.models.llama.model_args import ModelArgs
from transformers import AutoModelForCausalLM

from etdeploy.export.hf.meta import NAMES
from etdeploy.export.worker.failures import WorkerError
from etdeploy.export.worker.language.meta import converted
from etdeploy.export.worker.language.tokenizer import load_tokenizer

PARAMS: dict[str, Any] = {
    "dim": 32, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "vocab_size": 96, "hidden_dim": 64,
    "norm_eps": 1e-5, "rope_theta": 500000.0,
}  # fmt: skip
# https://github.com/meta-llama/llama-models/blob/main/models/llama3/tokenizer.py
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SCALED = {**PARAMS, "use_scaled_rope": True, "rope_scale_factor": 8}
# Names of torchtune by those of Meta; a name in transformers has one of each.
TORCHTUNE = {
    meta: tune
    for meta, found in NAMES.items()
    for tune, same in NAMES.items()
    if found == same and meta != tune and meta.startswith(("attention", "f", "norm.w"))
}


def reference(params: Mapping[str, Any]) -> Any:
    """ExecuTorch's own model, with logits of all tokens."""
    torch.manual_seed(0)
    model: Any = construct_transformer(
        ModelArgs(max_seq_len=64, max_context_len=64, generate_full_logits=True, **params)
    ).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(mean=float(weight.dim() == 1), std=0.2)
    return model


def in_torchtune(name: str) -> str:
    """The name of a tensor there."""
    parts = name.split(".", 2)
    if parts[0] == "layers":
        return f"layers.{parts[1]}.{TORCHTUNE[parts[2]]}"
    return TORCHTUNE.get(name, name)


def write(folder: Path, name: str, tensors: Mapping[str, Any], params: Mapping[str, Any]) -> Any:
    """The files of a checkpoint."""
    checkpoint, sizes = folder / f"{name}.pth", folder / f"{name}.json"
    torch.save(tensors, checkpoint)
    sizes.write_text(json.dumps(params))
    return checkpoint, sizes


def distance(model: Any, files: Any) -> float:
    """The largest difference of a logit between the model and the converted checkpoint."""
    theirs = AutoModelForCausalLM.from_pretrained(converted(*files), dtype=torch.float32).eval()
    tokens = torch.randint(0, PARAMS["vocab_size"], (1, 40))
    with torch.no_grad():
        wanted, found = model(tokens), theirs(input_ids=tokens).logits
    assert wanted.std() > 0.1
    return float((wanted - found).abs().max())


def refusal(files: Any) -> str:
    """What is said of a checkpoint."""
    try:
        converted(*files)
    except WorkerError as error:
        return error.failure.message
    return ""


TEXTS = ("the thing is singing, h\u00e9llo \u4e16\u754c", "hello", "a  b\nthe", "1234 it's")


def tiktoken_ids(folder: Path) -> list[list[int]]:
    """Writes a tokenizer as Llama 3 has it; gives the ids of the texts."""
    ranks = {bytes([i]): i for i in range(256)}
    ranks |= {w: 256 + i for i, w in enumerate((b"th", b"the", b" t", b" the", b"in", b"ing"))}
    lines = (f"{b64encode(word).decode()} {rank}\n" for word, rank in ranks.items())
    (folder / "tokenizer.model").write_text("".join(lines))
    encoding = tiktoken.Encoding("test", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={})
    return [[len(ranks), *encoding.encode(text)] for text in TEXTS]


def sentencepiece_ids(folder: Path) -> list[list[int]]:
    """The same for one as Llama 2 has it."""
    with (folder / "tokenizer.model").open("wb") as stream:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(["the king is in the thing", "hello singing world"] * 20),
            model_writer=stream, vocab_size=300, model_type="bpe", byte_fallback=True,
            normalization_rule_name="identity", remove_extra_whitespaces=False,
            minloglevel=9,
        )  # fmt: skip
    model: Any = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    return [[1, *model.encode(text)] for text in TEXTS]


def wrong_texts(folder: Path, tensors: Mapping[str, Any], write_tokenizer: Any) -> list[str]:
    """Texts of which the converted tokenizer makes other ids, or which it does not give back."""
    folder.mkdir()
    wanted = write_tokenizer(folder)
    tokenizer = load_tokenizer(
        converted(*write(folder, "model", tensors, PARAMS)), remote_code=False
    )
    return [
        text
        for text, ids in zip(TEXTS, wanted, strict=True)
        if tokenizer.loaded(text)["input_ids"] != ids
        or tokenizer.loaded.decode(ids, skip_special_tokens=True).strip() != text.strip()
    ]


def main(folder: Path) -> None:
    """See above."""
    distances = {}
    for name, params in (("meta", PARAMS), ("scaled", SCALED)):
        model = reference(params)
        tensors = model.state_dict()
        distances[name] = distance(model, write(folder, name, tensors, params))
    renamed = {in_torchtune(name): tensor for name, tensor in tensors.items()}
    distances["torchtune"] = distance(model, write(folder, "tune", {"model": renamed}, SCALED))
    tied = {name: tensor for name, tensor in tensors.items() if name != "output.weight"}
    model.output.weight = model.tok_embeddings.weight
    distances["tied"] = distance(model, write(folder, "tied", tied, {**SCALED, "vocab_size": -1}))
    fewer = {name: tensor for name, tensor in tensors.items() if "layers.1" not in name}
    misfits = {
        "wider": write(folder, "wider", tensors, {**PARAMS, "hidden_dim": 128}),
        "fewer": write(folder, "fewer", fewer, PARAMS),
        "more": write(folder, "more", tensors, {**PARAMS, "n_layers": 1}),
        "other": write(folder, "other", {**tensors, "layers.0.moe.gate": tensors["norm.weight"]},
                       PARAMS),
        "code": write(folder, "code", {"norm.weight": print}, PARAMS),
    }  # fmt: skip
    made = {
        "distances": distances,
        "refusals": {name: refusal(files) for name, files in misfits.items()},
        "texts": {
            "tiktoken": wrong_texts(folder / "tiktoken", tensors, tiktoken_ids),
            "sentencepiece": wrong_texts(folder / "sentencepiece", tensors, sentencepiece_ids),
        },
    }
    sys.stdout.write(json.dumps(made) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
