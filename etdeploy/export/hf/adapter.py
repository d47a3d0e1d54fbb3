"""LoRA adapters as peft saves them, read without PyTorch.

https://huggingface.co/docs/peft/developer_guides/checkpoint has the format: a configuration, and
the tensors of the layers that the adapter changes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from etdeploy.core.commands import python_command
from etdeploy.export.hf.config import ConfigProblem
from etdeploy.export.hf.files import ADAPTER_CONFIG, ADAPTER_WEIGHTS, are_pickles, other_weights
from etdeploy.export.hf.meta import name_in_transformers
from etdeploy.export.hf.tensors import read_tensors
from etdeploy.recipe.hub_cache import read_object

# Before the path of each layer in the names of tensors.
PREFIX = "base_model.model."
_KEY = ("model", "lora")
_AGAIN = "Name the folder that the save_pretrained of a peft model wrote."
_CONVERT = (
    "import torch; from safetensors.torch import save_file; "
    "save_file(torch.load({source}, weights_only=True), {target})"
)
# Keys of a configuration under which an adapter is more than products of two matrices, with what
# it does then.
_MORE = {
    "layer_replication": "repeats layers of the model",
    "alora_invocation_tokens": "takes effect only after certain tokens",
    "trainable_token_indices": "replaces the embeddings of some tokens",
    "target_parameters": "changes parameters that are not the weight of a layer",
    "use_qalora": "averages the inputs of its layers in groups",
    "use_bdlora": "has block-diagonal matrices",
    "arrow_config": "chooses between other adapters",
    "megatron_config": "belongs to a model of Megatron",
    "kasa_config": "changes the weights of the model itself",
    "monteclora_config": "draws its weights at random",
    "velora_config": "is a VeLoRA adapter",
}
# What names of quantized models end with, like `-Q4_K_M.gguf` or `-GPTQ-Int4`.
_QUANTIZED = re.compile(
    r"([-._](gguf|i?q\d\w*|b?f(16|32)|gptq|awq|quantized|unsloth|bnb|int\d|\d+bit|w\d+a\d+|g\d+))+$"
)
# Initial values that peft takes out of the model's own weights.
_CHANGE_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
_KEEP = (
    "Save it as an adapter of the original model: save_pretrained(FOLDER, "
    "path_initial_model_for_weight_conversion=...) of peft does that."
)


@dataclass(frozen=True)
class LoraConfig:
    """What `adapter_config.json` says of an adapter.

    Attributes:
        rank: Of its matrices, unless `ranks` has a pattern for the layer.
        alpha: The product of two matrices is scaled by this and the rank; `alphas` as `ranks`.
        rank_stabilized: Whether it is divided by the root of the rank.
        tied: Whether layers that share a weight stay tied.
        base: The model that it was trained for, as its author named it.
    """

    rank: int
    alpha: float
    ranks: Mapping[str, int] = field(default_factory=dict)
    alphas: Mapping[str, float] = field(default_factory=dict)
    rank_stabilized: bool = False
    tied: bool = False
    base: str | None = None

    def rank_of(self, layer: str) -> int:
        """The rank of a layer, by its path."""
        return int(_matching(self.ranks, layer, self.rank))

    def scale_of(self, layer: str) -> float:
        """The factor of the product of its matrices."""
        rank = self.rank_of(layer)
        divisor = math.sqrt(rank) if self.rank_stabilized else rank
        return float(_matching(self.alphas, layer, self.alpha) / divisor)


def _matching(patterns: Mapping[str, float], layer: str, default: float) -> float:
    """The value of the first pattern that is the path of a layer, or its end after a dot."""
    found = (v for p, v in patterns.items() if re.fullmatch(rf"(.*\.)?({p})", layer))
    return next(found, default)


def read_adapter(folder: Path) -> LoraConfig | ConfigProblem:
    """The configuration of an adapter, or why it cannot be used."""
    path = folder / ADAPTER_CONFIG
    try:
        content = read_object(path)
    except FileNotFoundError:
        return _problem(f"there is no {ADAPTER_CONFIG}, so this is not an adapter of peft", folder)
    except OSError as error:
        return _problem(f"the file cannot be read: {error.strerror}", path)
    except ValueError as error:
        return _problem(f"the file is damaged: {error}", path)
    refusal = next(_config_refusals(content, path), None) or _weights_refusal(folder)
    if refusal:
        return refusal
    try:
        return _config(content)
    except (TypeError, ValueError, KeyError, AttributeError, re.error) as error:
        return _problem(f"the file is damaged: {type(error).__name__}: {error}", path)


def _config(content: Mapping[str, Any]) -> LoraConfig:
    ranks, alphas = (dict(content.get(f"{name}_pattern") or {}) for name in ("rank", "alpha"))
    for pattern in (*ranks, *alphas):
        re.compile(pattern)
    made = LoraConfig(
        rank=int(content["r"]),
        alpha=float(content["lora_alpha"]),
        ranks={pattern: int(rank) for pattern, rank in ranks.items()},
        alphas={pattern: float(alpha) for pattern, alpha in alphas.items()},
        rank_stabilized=bool(content.get("use_rslora")),
        tied=bool(content.get("ensure_weight_tying")),
        base=content.get("base_model_name_or_path") or None,
    )
    if min((made.rank, *made.ranks.values())) < 1:
        raise ValueError("a rank is smaller than 1")
    return made


def _config_refusals(content: Mapping[str, Any], path: Path) -> Iterator[ConfigProblem]:
    kind = content.get("peft_type")
    if kind != "LORA":
        yield _problem(
            f"this is an adapter of the kind {kind!r}, and only those of LORA are supported",
            path,
            "Train one with peft's LoraConfig, or merge it with the model where peft can do that, "
            "and export the merged model.",
        )
    for key, does in _MORE.items():
        if content.get(key):
            yield _problem(
                f"the adapter {does} ({key}), which is not supported",
                path,
                "Merge it with the model in peft where peft can do that, and export the merged "
                "model.",
            )
    start = str(content.get("init_lora_weights", True)).lower()
    if start.startswith(_CHANGE_BASE):
        yield _problem(
            f"the adapter belongs to a model whose weights it changed at its start "
            f"(init_lora_weights: {start})",
            path,
            _KEEP,
        )


def _weights_refusal(folder: Path) -> ConfigProblem | None:
    if (folder / ADAPTER_WEIGHTS).is_file():
        return _tensors_refusal(folder / ADAPTER_WEIGHTS)
    pickles = [n for n in other_weights([p.name for p in folder.iterdir()]) if are_pickles([n])]
    if not pickles:
        return _problem(f"there is no {ADAPTER_WEIGHTS}", folder)
    source, target = folder / pickles[0], folder / ADAPTER_WEIGHTS
    return _problem(
        f"the adapter's weights are in a pickle, {pickles[0]}; only safetensors are read",
        folder,
        "Convert them, with a loader that runs no code:\n"
        + python_command(_CONVERT, source=str(source), target=str(target)),
    )


def _tensors_refusal(path: Path) -> ConfigProblem | None:
    try:
        names = read_tensors(path).infos
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        cause = f"{type(error).__name__}: {error}"
        return _problem(f"the adapter's weights are damaged: {cause}", path, "Get them again.")
    for name in names:
        layer, is_matrix, _ = name.removeprefix(PREFIX).partition(".lora_")
        found = name_in_transformers(f"{layer}.weight") if is_matrix else None
        if found:
            return _problem(
                f"the adapter names layers as Meta or torchtune does, like {layer}; "
                f"{found.removesuffix('.weight')} would be transformers' name",
                path,
                "Save it as peft does, with a configuration: torchtune's FullModelHFCheckpointer "
                "writes such a folder.",
            )
    return None


def _problem(message: str, place: Path, remedy: str = _AGAIN) -> ConfigProblem:
    return ConfigProblem(message, remedy, key=_KEY, place=str(place))


def base_note(config: LoraConfig, adapter: str, model: str) -> str | None:
    """A sentence where an adapter names another model than that which it is applied to."""
    if config.base is None or _last(config.base) == _last(model):
        return None
    return (
        f"The adapter {adapter} was trained for {config.base}, as its {ADAPTER_CONFIG} says, and "
        f"the model is {model}."
    )


def _last(name: str) -> str:
    last = name.rstrip("/\\").replace("\\", "/").rpartition("/")[2].casefold()
    return _QUANTIZED.sub("", last)
