"""Checkpoints as Meta and torchtune write them: what `params.json` says, and names of tensors.

A model of these has Llama's architecture. Its weights are those of transformers' Llama under other
names; queries and keys have the two halves of a rotation interleaved.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from etdeploy.export.hf.config import ConfigProblem

_REQUIRED = ("dim", "n_layers", "n_heads")
# Positions that the models were trained with, which params.json does not say: Llama 2, 3 and 3.1.
_POSITIONS, _POSITIONS_OF_3, _POSITIONS_OF_3_1 = 4096, 8192, 131_072
_THETA, _THETA_OF_3 = 10_000.0, 500_000.0
# Keys that transformers' Llama has something for; `use_hf_rope` says that nothing is interleaved.
_KNOWN = frozenset({
    *_REQUIRED, "n_kv_heads", "vocab_size", "multiple_of", "ffn_dim_multiplier", "hidden_dim",
    "head_dim", "norm_eps", "rope_theta", "rope_freq_base", "use_scaled_rope", "rope_scale_factor",
    "max_seq_len", "max_context_len", "max_batch_size", "use_hf_rope", "bos_idx", "eos_idx",
})  # fmt: skip
_OTHER_MODEL = (
    "For a model that is not a plain Llama, use ExecuTorch's own exporter: export.llm_config with\n"
    "base.checkpoint and base.params   (docs/language-models.md)"
)
# Parts of names: Meta's, torchtune's, transformers'.
_LAYER = re.compile(r"layers\.(\d+)\.(.+)")
_IN_LAYERS = {
    ("attention.wq.weight", "attn.q_proj.weight"): "self_attn.q_proj.weight",
    ("attention.wk.weight", "attn.k_proj.weight"): "self_attn.k_proj.weight",
    ("attention.wv.weight", "attn.v_proj.weight"): "self_attn.v_proj.weight",
    ("attention.wo.weight", "attn.output_proj.weight"): "self_attn.o_proj.weight",
    ("feed_forward.w1.weight", "mlp.w1.weight"): "mlp.gate_proj.weight",
    ("feed_forward.w2.weight", "mlp.w2.weight"): "mlp.down_proj.weight",
    ("feed_forward.w3.weight", "mlp.w3.weight"): "mlp.up_proj.weight",
    ("attention_norm.weight", "sa_norm.scale"): "input_layernorm.weight",
    ("ffn_norm.weight", "mlp_norm.scale"): "post_attention_layernorm.weight",
}
EMBEDDINGS = "model.embed_tokens.weight"
_OUTSIDE = {
    ("tok_embeddings.weight",): EMBEDDINGS,
    ("norm.weight", "norm.scale"): "model.norm.weight",
    ("output.weight",): "lm_head.weight",
}
NAMES = {name: theirs for names, theirs in (_IN_LAYERS | _OUTSIDE).items() for name in names}
# What models compute themselves.
_COMPUTED = frozenset({"rope.freqs", "freqs_cis"})


def read_params(path: Path) -> dict[str, Any] | ConfigProblem:
    """What `config.json` of the same model would say; without `vocab_size` if that is not there."""
    try:
        params = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        return ConfigProblem(f"the params cannot be read: {error}", place=str(path))
    if not isinstance(params, dict):
        return ConfigProblem("the params are not a JSON object", place=str(path))
    params = params.get("model", params) if isinstance(params.get("model"), dict) else params
    for problem in _problems(params):
        return ConfigProblem(problem, _remedy(params), place=str(path))
    return _config(params)


def _problems(params: Mapping[str, Any]) -> Iterator[str]:
    missing = [key for key in _REQUIRED if not _is_size(params.get(key))]
    if missing:
        yield f"{', '.join(missing)} of the model {'is' if len(missing) == 1 else 'are'} missing"
        return
    unknown = [key for key, value in params.items() if key not in _KNOWN and value]
    if unknown:
        yield f"{', '.join(unknown)}: transformers' Llama has nothing for these params"
    heads, groups = params["n_heads"], params.get("n_kv_heads") or params["n_heads"]
    if not _is_size(groups) or heads % groups:
        yield f"n_heads {heads} is not a multiple of n_kv_heads {groups}"
    elif params["dim"] % heads and not _is_size(params.get("head_dim")):
        yield f"dim {params['dim']} is not a multiple of n_heads {heads}"
    if params.get("use_scaled_rope") and not params.get("rope_scale_factor"):
        yield "use_scaled_rope is set, and rope_scale_factor does not say by which factor"


def _remedy(params: Mapping[str, Any]) -> str:
    if params.get("use_scaled_rope") and not params.get("rope_scale_factor"):
        return 'Add the factor: "rope_scale_factor": 8 for Llama 3.1, 32 for Llama 3.2'
    return _OTHER_MODEL


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _config(params: Mapping[str, Any]) -> dict[str, Any]:
    heads = params["n_heads"]
    theta = float(params.get("rope_theta") or params.get("rope_freq_base") or _THETA)
    scaled = bool(params.get("use_scaled_rope"))
    usual = _POSITIONS_OF_3 if theta >= _THETA_OF_3 else _POSITIONS
    named = params.get("max_context_len") or params.get("max_seq_len")
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": theta}
    if scaled:
        rope |= {
            "rope_type": "llama3",
            "factor": float(params["rope_scale_factor"]),
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": _POSITIONS_OF_3,
        }
    vocabulary = params.get("vocab_size")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": params["dim"],
        "num_hidden_layers": params["n_layers"],
        "num_attention_heads": heads,
        "num_key_value_heads": params.get("n_kv_heads") or heads,
        "head_dim": params.get("head_dim") or params["dim"] // heads,
        "intermediate_size": _hidden_size(params),
        "rms_norm_eps": float(params.get("norm_eps") or 1e-5),
        "max_position_embeddings": named or (_POSITIONS_OF_3_1 if scaled else usual),
        "rope_parameters": rope,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": None,
        **({"vocab_size": vocabulary} if _is_size(vocabulary) else {}),
    }


def _hidden_size(params: Mapping[str, Any]) -> int:
    """Of the feed-forward layers: two thirds of four times `dim`, scaled, and rounded up.

    https://github.com/meta-llama/llama3/blob/main/llama/model.py (class FeedForward)
    """
    if _is_size(params.get("hidden_dim")):
        return int(params["hidden_dim"])
    size = int(2 * 4 * params["dim"] / 3)
    size = int(size * float(params.get("ffn_dim_multiplier") or 1))
    multiple = int(params.get("multiple_of") or 256)
    return multiple * -(-size // multiple)


def is_interleaved(path: Path) -> bool:
    """Whether queries and keys have the halves of a rotation interleaved."""
    return not json.loads(path.read_bytes()).get("use_hf_rope")


def name_in_transformers(name: str) -> str | None:
    """The name of a tensor in transformers' Llama; empty for one that it computes, or None."""
    if name in _COMPUTED:
        return ""
    inside = _LAYER.fullmatch(name)
    if inside is None:
        return NAMES.get(name) if name in _outside_names() else None
    found = NAMES.get(inside[2]) if inside[2] not in _outside_names() else None
    return f"model.layers.{inside[1]}.{found}" if found else None


def meta_name(name: str) -> str:
    """Meta's name of a tensor in transformers."""
    inside = re.fullmatch(r"model\.(layers\.\d+\.)(.+)", name)
    own = next(meta for meta, found in NAMES.items() if found == (inside[2] if inside else name))
    return f"{inside[1]}{own}" if inside else own


def _outside_names() -> frozenset[str]:
    return frozenset(name for names in _OUTSIDE for name in names)


def expected_shapes(config: Mapping[str, Any], vocabulary: int) -> dict[str, tuple[int, ...]]:
    """The shape of each tensor of the model, by its name in transformers."""
    hidden, inner, head = (config[k] for k in ("hidden_size", "intermediate_size", "head_dim"))
    queries = config["num_attention_heads"] * head
    keys = config["num_key_value_heads"] * head
    of_layer = {
        "self_attn.q_proj.weight": (queries, hidden),
        "self_attn.k_proj.weight": (keys, hidden),
        "self_attn.v_proj.weight": (keys, hidden),
        "self_attn.o_proj.weight": (hidden, queries),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
        "mlp.up_proj.weight": (inner, hidden),
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
    }
    layers = {
        f"model.layers.{i}.{name}": shape
        for i in range(config["num_hidden_layers"])
        for name, shape in of_layer.items()
    }
    return {
        EMBEDDINGS: (vocabulary, hidden),
        **layers,
        "model.norm.weight": (hidden,),
        "lm_head.weight": (vocabulary, hidden),
    }
