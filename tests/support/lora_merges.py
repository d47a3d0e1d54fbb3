"""Merges LoRA adapters that peft has made, in one process, and compares with peft.

    python -m tests.support.lora_merges FOLDER

makes a model of each kind and its adapters below the folder, and prints as JSON what came of each
by name: how far logits are from those of peft, or the failure.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from etdeploy.export.hf.meta import meta_name
from etdeploy.export.spec import ExportSpec, HfModel
from etdeploy.export.worker.failures import WorkerError
from etdeploy.export.worker.language.load import load_model
from etdeploy.export.worker.language.lora import adapted_model, with_adapters
from etdeploy.export.worker.lowering.stored import StoredWeight
from etdeploy.recipe.sections.export import ExportGeneration
from tests.support.gguf_export import PARTS, as_written
from tests.support.gguf_files import (
    HEADS,
    HIDDEN,
    INNER,
    LAYERS,
    SHARED_HEADS,
    VOCABULARY,
    write_gguf,
)
from tests.support.language_models import LLAMA, save_llama, save_tokenizer, spread_model
from tests.support.quantized_checkpoints import gptq, save
from tests.support.tokenizers import CHAT

_TOKENS = torch.arange(3, 19).unsqueeze(0)
_ATTENTION = ["q_proj", "v_proj"]
_GPT2 = {"vocab_size": 320, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 512}
_AS_IN_GGUF = {
    "vocab_size": VOCABULARY, "intermediate_size": INNER, "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}  # fmt: skip
# What each adapter is made with; `tied` and `gpt2` are other models than Llama.
ADAPTERS: dict[str, dict[str, Any]] = {
    "plain": {"target_modules": _ATTENTION},
    "all_linear": {"target_modules": "all-linear", "r": 4},
    "rank_stabilized": {"target_modules": _ATTENTION, "use_rslora": True},
    "patterns": {
        "target_modules": [*_ATTENTION, "down_proj"],
        "rank_pattern": {"v_proj": 2, r"layers\.1\.mlp\.down_proj": 5},
        "alpha_pattern": {r"layers\.0\.self_attn\.q_proj": 3},
    },
    "dora": {"target_modules": [*_ATTENTION, "embed_tokens"], "use_dora": True},
    "embeddings": {"target_modules": ["embed_tokens", "q_proj"]},
    "whole_modules": {"target_modules": _ATTENTION, "modules_to_save": ["lm_head", "norm"]},
    "tied_output": {"target_modules": ["lm_head", "q_proj"]},
    "gpt2_biases": {"target_modules": ["c_attn", "c_fc"], "bias": "all", "fan_in_fan_out": True},
    "lora_bias": {"target_modules": ["c_attn"], "lora_bias": True, "fan_in_fan_out": True},
}
_OTHER_MODELS: dict[str, Callable[[Path], Any]] = {
    "tied_output": partial(save_llama, tie_word_embeddings=True),
    "gpt2_biases": lambda folder: _save_gpt2(folder),
    "lora_bias": lambda folder: _save_gpt2(folder),
}


def _save_gpt2(folder: Path) -> None:
    spread_model("GPT2", _GPT2, std=0.2).save_pretrained(folder)
    save_tokenizer(folder)


def _adapted(model: Path, **config: Any) -> Any:
    """A peft model whose adapter has random values everywhere."""
    return _with_adapter(_plain(model), **config)


def _plain(model: Path) -> Any:
    """The model without an adapter, in floats."""
    return AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)


def _with_adapter(base: Any, **config: Any) -> Any:
    adapted = get_peft_model(base, LoraConfig(**{"r": 8, "lora_alpha": 24, **config}))
    torch.manual_seed(len(str(config)))
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            parameter.data += 0.1 * torch.randn_like(parameter)
    return adapted.eval()


def _spec(model: Path, *adapters: Path) -> ExportSpec:
    return ExportSpec(
        hf=HfModel(folder=str(model)),
        lora=tuple(HfModel(folder=str(folder)) for folder in adapters),
        generation=ExportGeneration(context=64),
    )


def _silent(*_: object) -> None:
    """No progress is shown."""


def _logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = model(input_ids=_TOKENS, use_cache=False).logits
    return logits


def _compared(folder: Path, name: str) -> dict[str, Any]:
    model = folder / f"{name}-model"
    make: Callable[[Path], Any] = _OTHER_MODELS.get(name, save_llama)
    make(model)
    # peft ties the merged weights of that one again.
    checkpoint, merges = HfModel(folder=str(model)), name != "tied_output"
    return _against_peft(folder / name, checkpoint, _plain(model), ADAPTERS[name], merges=merges)


def _against_peft(
    adapter: Path, checkpoint: HfModel, base: Any, config: dict[str, Any], *, merges: bool = True
) -> dict[str, Any]:
    """Compares a checkpoint with an adapter, merged and apart, with peft on a model in floats."""
    before = _logits(base)
    reference = _with_adapter(base, **config)
    reference.save_pretrained(adapter)
    spec = _spec(Path(), adapter).model_copy(update={"hf": checkpoint})
    merged = with_adapters(spec, load_model(spec, _silent), _silent)
    ours, wanted = _logits(merged.model), _logits(reference)
    apart = spec.model_copy(update={"lora": (), "adapters": {"own": spec.lora[0]}})
    beside = with_adapters(apart, load_model(apart, _silent), _silent)
    adapted = adapted_model(beside.model, beside.apart["own"])
    found: dict[str, Any] = {
        "adapter_moves": float((wanted - before).abs().max()),
        "distance": float((ours - wanted).abs().max()),
        "distance_apart": float((_logits(adapted) - wanted).abs().max()),
        "base_moves": float((_logits(beside.model) - before).abs().max()),
        "shared": _shared_share(beside.model, adapted),
        "notes": list(merged.notes),
        "stored": len(merged.stored),
        "stored_apart": len(beside.stored),
    }
    if merges:
        theirs = _logits(reference.merge_and_unload())
        found["distance_from_merged"] = float((ours - theirs).abs().max())
    return found


def _other_checkpoints(folder: Path) -> dict[str, dict[str, Any]]:
    """The same model as a GGUF file, a checkpoint of GPTQ and one of Meta, with an adapter."""
    source, file = folder / "other-model", folder / "base.gguf"
    model = spread_model("Llama", {**LLAMA, **_AS_IN_GGUF}, std=0.1)
    model.save_pretrained(source)
    state = {name: t for name, t in model.state_dict().items() if name != "lm_head.weight"}
    written = {
        name: (own, as_written(part, state[own].numpy())) for name, part, own in _gguf_names()
    }
    write_gguf(file, "Q4_0", weights={name: weight for name, (_, weight) in written.items()})
    blocks = GGMLQuantizationType.Q4_0
    # A block has inputs of one output, so the order of outputs does not matter.
    in_gguf = {
        name: torch.from_numpy(dequantize(quantize(t.numpy(), blocks), blocks))
        for name, t in state.items()
        if t.dim() == 2
    }
    in_gptq = gptq(state)
    save(in_gptq, source, folder / "base-gptq")
    params = {
        "dim": HIDDEN, "n_layers": LAYERS, "n_heads": HEADS, "n_kv_heads": SHARED_HEADS,
        "hidden_dim": INNER, "norm_eps": 1e-5, "rope_theta": 10000.0,
    }  # fmt: skip
    (folder / "params.json").write_text(json.dumps(params))
    # Meta has the halves of a rotation in the same order as GGUF.
    tensors = {meta_name(own): torch.from_numpy(weight) for own, weight in written.values()}
    torch.save(tensors, folder / "base.pth")
    meta = {"checkpoint": str(folder / "base.pth"), "params": str(folder / "params.json")}
    checkpoints = {
        "gguf_base": (HfModel(folder=str(folder), gguf=file.name), in_gguf),
        "gptq_base": (HfModel(folder=str(folder / "base-gptq")), in_gptq.floats),
        "meta_base": (HfModel(**meta), {}),
    }
    found = {}
    for name, (checkpoint, floats) in checkpoints.items():
        base = _plain(source)
        base.load_state_dict(floats, strict=False)
        config = {"target_modules": "all-linear"}
        found[name] = _against_peft(folder / name, checkpoint, base.eval(), config)
    return found


def _gguf_names() -> Iterator[tuple[str, str, str]]:
    """Of each tensor: its name in GGUF, without a layer's number, too, and in transformers."""
    yield "token_embd.weight", "token_embd", "model.embed_tokens.weight"
    yield "output_norm.weight", "output_norm", "model.norm.weight"
    norms = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
    for part, path in {**PARTS, **norms}.items():
        for n in range(LAYERS):
            yield f"blk.{n}.{part}.weight", part, f"model.layers.{n}.{path}.weight"


def _shared_share(model: Any, adapted: Any) -> float:
    """How much of the model's weights the model with the adapter has, too."""
    own = {id(weight): weight.numel() for weight in model.parameters()}
    both = {id(weight) for weight in adapted.parameters()} & {*own}
    return float(sum(own[each] for each in both) / sum(own.values()))


def _two_of_them(folder: Path) -> dict[str, Any]:
    """Several adapters add up, as several active ones of peft do."""
    model, names = folder / "plain-model", ("plain", "all_linear")
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    reference = PeftModel.from_pretrained(base, folder / "plain", adapter_name="plain")
    reference.load_adapter(folder / "all_linear", adapter_name="all_linear")
    reference.base_model.set_adapter([*names])
    spec = _spec(model, *(folder / name for name in names))
    merged = with_adapters(spec, load_model(spec, _silent), _silent)
    distance = (_logits(merged.model) - _logits(reference.eval())).abs().max()
    return {"distance": float(distance)}


def _two_for_a_program(folder: Path) -> None:
    """A model of one layer with two adapters, which a program has apart."""
    model = save_llama(folder / "small-model", num_hidden_layers=1)
    (model / "chat_template.jinja").write_text(CHAT)
    for name in ("few", "all"):
        modules = _ATTENTION if name == "few" else "all-linear"
        _adapted(model, target_modules=modules).save_pretrained(folder / f"small-{name}")


def _stored(folder: Path) -> dict[str, Any]:
    """What of a quantized checkpoint is still its own."""
    spec = _spec(folder / "plain-model", folder / "plain")
    loaded = load_model(spec, _silent)
    layers = ("self_attn.q_proj", "self_attn.k_proj")
    stored = {f"model.layers.0.{layer}": StoredWeight("Q4_0", 4) for layer in layers}
    loaded = type(loaded)(**{**vars(loaded), "stored": stored})
    return {"stored": [*with_adapters(spec, loaded, _silent).stored]}


def _refused(folder: Path, change: Callable[[Path], object], **model: Any) -> dict[str, Any]:
    """The failure of a copy of the plain adapter that was changed."""
    base, adapter = folder / "plain-model", folder / f"{change.__name__}-adapter"
    if model:
        base = save_llama(folder / f"{change.__name__}-model", **model)
    adapter.mkdir()
    for path in (folder / "plain").iterdir():
        if path.is_file():
            (adapter / path.name).write_bytes(path.read_bytes())
    change(adapter)
    spec = _spec(base, adapter)
    try:
        notes = with_adapters(spec, load_model(spec, _silent), _silent).notes
    except WorkerError as error:
        return {**error.failure.model_dump(mode="json"), "adapter": str(adapter)}
    return {"notes": list(notes)}


def _change_tensors(adapter: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    path = adapter / "adapter_model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


def narrow(adapter: Path) -> None:
    """A matrix has fewer inputs than the layer."""
    name = "base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight"
    _change_tensors(adapter, lambda t: t.update({name: t[name][:, :32].contiguous()}))


def other_base(adapter: Path) -> None:
    """The configuration names another model."""
    path = adapter / "adapter_config.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "base_model_name_or_path": "org/Other-1B"}))


def other_rank(adapter: Path) -> None:
    """The configuration has another rank than the matrices."""
    path = adapter / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "r": 16}))


def missing_matrix(adapter: Path) -> None:
    """A layer has only one of its matrices."""
    name = "base_model.model.model.layers.1.self_attn.q_proj.lora_B.weight"
    _change_tensors(adapter, lambda t: t.pop(name))


def cut(adapter: Path) -> None:
    """The file of weights ends too early."""
    path = adapter / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:2000])


def deeper(_adapter: Path) -> None:
    """The model has fewer layers than the adapter."""


def unchanged(_adapter: Path) -> None:
    """The adapter is as it was."""


def wider(_adapter: Path) -> None:
    """The model has a larger hidden size."""


def main(folder: Path) -> dict[str, Any]:
    """What came of each."""
    found = {name: _compared(folder, name) for name in ADAPTERS}
    found |= _other_checkpoints(folder)
    _two_for_a_program(folder)
    found["two_of_them"] = _two_of_them(folder)
    found["stored"] = _stored(folder)
    for change in (unchanged, narrow, other_base, other_rank, missing_matrix, cut):
        found[change.__name__] = _refused(folder, change)
    found["deeper"] = _refused(folder, deeper, num_hidden_layers=1)
    found["wider"] = _refused(folder, wider, hidden_size=2 * LLAMA["hidden_size"])
    return found


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(Path(sys.argv[1]))) + "\n")
