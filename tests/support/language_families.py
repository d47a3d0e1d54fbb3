"""Exports tiny models of many families and compares their greedy text with transformers' own.

Qwen 3 and Gemma 3 are in `generation_run`, which looks at the logits of every step.

`python -m tests.support.language_families FOLDER NAME...` writes `<name>.pte` for each into the
folder, and one line of JSON at the end.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tests.support.language_models import spread_model

PROMPT, NEW, CONTEXT, PART, VOCABULARY = 11, 12, 32, 8, 128
_WINDOW = 8  # fewer than the tokens of the prompt
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_SLIDING = {
    "num_hidden_layers": 2,
    "head_dim": 8,
    "sliding_window": _WINDOW,
    "layer_types": ["sliding_attention", "full_attention"],
}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_LATENT = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 12,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "n_shared_experts": 1,
    "n_group": 2,
    "topk_group": 1,
}


@dataclass(frozen=True)
class Family:
    """A family's smallest member that has all kinds of its layers.

    Attributes:
        kind: Name of transformers' configuration, without Config.
        config: What it has beside `SIZES`.
        path: Asked for; `auto` unless the test is about one.
        backend: XNNPACK lowers in ten times as long as portable.
        quantization: The scheme.
    """

    kind: str
    config: dict[str, Any] = field(default_factory=dict)
    path: Literal["auto", "plain"] = "auto"
    backend: Literal["portable", "xnnpack"] = "portable"
    quantization: Literal["none", "8da4w"] = "none"


_LLAMA_3 = {
    "num_hidden_layers": 2,
    "rope_parameters": {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    },
}
_MIXTRAL = {"num_local_experts": 4, "num_experts_per_tok": 2}
FAMILIES = {
    "llama3": Family("Llama", _LLAMA_3, backend="xnnpack"),
    "qwen2.5": Family("Qwen2", {"tie_word_embeddings": True}),
    "phi": Family("Phi"),
    "phi3": Family("Phi3"),
    "smollm3": Family("SmolLM3", {"num_hidden_layers": 2, "no_rope_layers": [1, 0]}),
    # Tied weights would make a random model say its last token again and again.
    "gemma2": Family(
        "Gemma2", {**_SLIDING, "query_pre_attn_scalar": 16, "tie_word_embeddings": False}
    ),
    "granite": Family(
        "Granite",
        {
            "embedding_multiplier": 3.0,
            "attention_multiplier": 0.2,
            "residual_multiplier": 0.5,
            "logits_scaling": 2.0,
        },
    ),
    "lfm2": Family(
        "Lfm2",
        {
            "num_hidden_layers": 2,
            "layer_types": ["conv", "full_attention"],
            "block_auto_adjust_ff_dim": False,
        },
    ),
    "mamba": Family("Mamba", {"state_size": 8, "tie_word_embeddings": False}),
    "mamba2": Family(
        "Mamba2", {"state_size": 8, "num_heads": 4, "head_dim": 16, "n_groups": 1, "chunk_size": 8}
    ),
    "falcon-mamba": Family("FalconMamba", {"state_size": 8, "tie_word_embeddings": False}),
    "rwkv": Family(
        "Rwkv", {"num_hidden_layers": 2, "attention_hidden_size": 32, "rescale_every": 1}
    ),
    "xlstm": Family("xLSTM", {"num_hidden_layers": 2, "hidden_size": 64, "qk_dim_factor": 1.0}),
    "recurrent-gemma": Family(
        "RecurrentGemma",
        {
            "num_hidden_layers": 3,
            "attention_window_size": _WINDOW,
            "tie_word_embeddings": False,
        },
    ),
    "jamba": Family(
        "Jamba",
        {
            "num_hidden_layers": 2,
            "mamba_d_state": 8,
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "num_experts": 2,
            "num_experts_per_tok": 1,
            "expert_layer_period": 2,
            "expert_layer_offset": 1,
        },
        backend="xnnpack",
    ),
    "falcon-h1": Family(
        "FalconH1",
        {
            "mamba_d_ssm": 32,
            "mamba_n_heads": 4,
            "mamba_d_head": 8,
            "mamba_n_groups": 1,
            "mamba_d_state": 8,
            "mamba_chunk_size": 8,
        },
    ),
    "qwen3-next": Family(
        "Qwen3Next",
        {
            **_EXPERTS,
            "num_hidden_layers": 2,
            "layer_types": ["linear_attention", "full_attention"],
            "head_dim": 8,
            "linear_num_value_heads": 4,
            "linear_num_key_heads": 2,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
            "shared_expert_intermediate_size": 32,
        },
    ),
    "granite-hybrid": Family(
        "GraniteMoeHybrid",
        {
            "num_hidden_layers": 2,
            "layer_types": ["mamba", "attention"],
            "mamba_n_heads": 4,
            "mamba_d_head": 16,
            "mamba_n_groups": 1,
            "mamba_d_state": 8,
            "mamba_chunk_size": 8,
            "num_local_experts": 2,
            "num_experts_per_tok": 1,
            "shared_intermediate_size": 32,
        },
    ),
    "mixtral": Family("Mixtral", _MIXTRAL),
    "qwen2-moe": Family("Qwen2Moe", {**_EXPERTS, "shared_expert_intermediate_size": 32}),
    "qwen3-moe": Family("Qwen3Moe", {**_EXPERTS, "head_dim": 16}),
    "deepseek-v3": Family("DeepseekV3", {**_LATENT, "first_k_dense_replace": 0}),
    "llama-plain": Family("Llama", path="plain"),
    "mixtral-plain": Family("Mixtral", _MIXTRAL, path="plain"),
    "mixtral-plain-8da4w": Family(
        "Mixtral", _MIXTRAL, path="plain", backend="xnnpack", quantization="8da4w"
    ),
    "deepseek-v2-8da4w": Family(
        "DeepseekV2",
        {**_LATENT, "kv_lora_rank": 32, "q_lora_rank": 32, "first_k_dense_replace": 0},
        backend="xnnpack",
        quantization="8da4w",
    ),
}
Step = Callable[[str, Any, Any], Any]


def tiny(family: Family) -> Any:
    """A model with random weights, large enough that its logits differ from each other."""
    return spread_model(family.kind, {**SIZES, **family.config}, std=0.2)


def prompt() -> list[int]:
    """Longer than a part of a prompt, and than a window."""
    return [3 + 37 * index % (VOCABULARY - 3) for index in range(PROMPT)]


def found(family: Family, path: Path) -> dict[str, Any]:
    """The path that the model took, its own text, and the program's."""
    import executorch.kernels.quantized  # noqa: F401 - has the look-up of quantized embeddings
    import torch
    from executorch.runtime import Runtime

    from etdeploy.export.worker.backends.base import lowering_of
    from etdeploy.export.worker.language.sources import generation_sources
    from etdeploy.export.worker.lowering.quantize import quantize
    from tests.support.export import spec_of
    from tests.support.lowered_sources import lowered

    model = tiny(family)
    own = model.generate(
        torch.tensor([prompt()]), max_new_tokens=NEW, do_sample=False, eos_token_id=None
    )
    wanted = own[0, PROMPT:].tolist()
    export = {"backend": family.backend, "quantization": family.quantization}
    spec = spec_of({"model": {"hf": str(path.parent)}, "export": export})
    made = generation_sources(
        model, context=CONTEXT, prefill_tokens=PART, path=family.path,
        conditional=lowering_of(spec).conditional,
    )  # fmt: skip
    margins: list[float] = []
    if family.quantization != "none":
        quantized = quantize(spec, made.sources)["decode"].notes
        choices = _choices(lambda name, *inputs: made.sources[name].module(*inputs))
        wanted, margins = ([choice[i] for choice in choices] for i in (0, 1))
        for name, buffer in made.sources["decode"].module.cache.named_buffers():
            if name.startswith(("key_", "value_")):
                buffer.zero_()
    else:
        quantized = ()
    with path.open("wb") as stream:
        lowered(spec, made.sources).write_to_file(stream)
    program = Runtime.get().load_program(str(path))
    methods = {method.name: program.load_method(method.name) for method in made.methods}
    part = PART if "prefill" in methods else 1
    chosen = _choices(lambda name, *inputs: methods[name].execute(inputs)[0], part, wanted)
    return {
        "jumps": _jumps(path, "decode"),
        "path": made.path,
        "why": made.path_reason,
        "notes": made.notes,
        "methods": [method.model_dump() for method in made.methods],
        "quantized": quantized,
        "wanted": wanted,
        "text": [token for token, _ in chosen],
        "margins": margins,
    }


def _jumps(path: Path, method: str) -> int:
    """The conditional jumps of a method: two for each condition."""
    from executorch.exir._serialize._program import deserialize_pte_binary
    from executorch.exir.schema import JumpFalseCall

    plans = deserialize_pte_binary(path.read_bytes()).program.execution_plan
    [plan] = (each for each in plans if each.name == method)
    calls = (i.instr_args for chain in plan.chains for i in chain.instructions)
    return sum(isinstance(call, JumpFalseCall) for call in calls)


def _choices(step: Step, most: int = PART, given: Sequence[int] = ()) -> list[tuple[int, float]]:
    """The most probable tokens after the prompt, and how far each logit is above the next largest.

    The prompt is taken in parts. A token follows those of `given`, or the ones chosen before it.
    """
    import torch

    ids, at, found = prompt(), 0, list[tuple[int, float]]()
    while True:
        part = ids[at : at + most]
        method = "prefill" if len(part) > 1 else "decode"
        with torch.no_grad():
            logits = step(method, torch.tensor([part]), torch.tensor([at]))
        at += len(part)
        if at == len(ids):
            (first, second), (token, _) = (each.tolist() for each in logits[0].flatten().topk(2))
            found.append((token, first - second))
            ids.append(given[len(found) - 1] if given else token)
        if len(ids) == PROMPT + NEW:
            return found


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    told = {name: found(FAMILIES[name], folder / f"{name}.pte") for name in sys.argv[2:]}
    sys.stdout.write("\n" + json.dumps(told) + "\n")
