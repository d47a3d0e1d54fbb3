"""Tiny language models with true architectures, random weights and a tokenizer of their own."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

# A tokenizer of so few words needs no network and no seconds.
_TEXTS = ["the quick brown fox jumps over the lazy dog", "says little, and says it soon"]
_BEGIN, _END, _UNKNOWN = "<s>", "</s>", "<unk>"
VOCABULARY = 320
LLAMA = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def save_llama(folder: Path, *, tokenizer: bool = True, **config: Any) -> Path:
    """Writes a Llama of two layers, as save_pretrained does it, and returns the folder."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**{**LLAMA, **config}))
    model.save_pretrained(folder)
    if tokenizer:
        save_tokenizer(folder)
    return folder


_MAMBA: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 64, "num_hidden_layers": 2, "bos_token_id": 1,
    "eos_token_id": 2, "pad_token_id": 0, "tie_word_embeddings": False,
}  # fmt: skip
# Mamba in the first layer, attention and experts in the second.
_JAMBA: dict[str, Any] = {
    **_MAMBA, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2,
    "mamba_d_state": 8, "attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 2,
    "num_experts_per_tok": 1, "expert_layer_period": 2, "expert_layer_offset": 1,
}  # fmt: skip


_RWKV: dict[str, Any] = {**_MAMBA, "attention_hidden_size": 64, "rescale_every": 1}
_XLSTM: dict[str, Any] = {**_MAMBA, "num_heads": 4, "qk_dim_factor": 1.0}
_RECURRENT_GEMMA: dict[str, Any] = {
    **_MAMBA, "num_hidden_layers": 3, "intermediate_size": 96, "num_attention_heads": 4,
    "num_key_value_heads": 1, "attention_window_size": 64,
}  # fmt: skip


def save_recurrent(folder: Path, kind: str, config: dict[str, Any]) -> Path:
    """Writes a model with recurrent states and a tokenizer."""
    spread_model(kind, config, std=0.2).save_pretrained(folder)
    save_tokenizer(folder)
    return folder


FAMILIES: dict[str, Callable[[Path], Path]] = {
    "llama": save_llama,
    "mamba": lambda folder: save_recurrent(folder, "Mamba", _MAMBA),
    "jamba": lambda folder: save_recurrent(folder, "Jamba", _JAMBA),
    "rwkv": lambda folder: save_recurrent(folder, "Rwkv", _RWKV),
    # Not xlstm: transformers would take a folder of that name for the package.
    "xlstm-small": lambda folder: save_recurrent(folder, "xLSTM", _XLSTM),
    "recurrent-gemma": lambda folder: save_recurrent(folder, "RecurrentGemma", _RECURRENT_GEMMA),
}


def spread_model(kind: str, config: dict[str, Any], *, std: float) -> Any:
    """A model with random weights, large enough that its logits differ from each other.

    Args:
        kind: Name of transformers' configuration, without Config.
        config: What that takes.
        std: Of the weights.
    """
    import torch
    import transformers

    torch.manual_seed(0)
    made = getattr(transformers, f"{kind}Config")(**config)
    model = transformers.AutoModelForCausalLM.from_config(made, dtype=torch.float32).eval()
    for weight in model.parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=std)
    return model


def save_tokenizer(folder: Path) -> None:
    """Trains a byte-level tokenizer on the spot, with <s> (1) and </s> (2)."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[_UNKNOWN, _BEGIN, _END],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    made.train_from_iterator(_TEXTS, trainer)
    made.post_processor = processors.TemplateProcessing(
        single=f"{_BEGIN} $A", special_tokens=[(_BEGIN, 1)]
    )
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token=_BEGIN, eos_token=_END, unk_token=_UNKNOWN
    )
    wrapped.save_pretrained(folder)
