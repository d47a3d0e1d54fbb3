"""LoRA adapters of peft: what they change in a model, merged with its weights or beside them."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from etdeploy.core.console import listed
from etdeploy.export.hf.adapter import PREFIX, LoraConfig, base_note, read_adapter
from etdeploy.export.hf.config import ConfigProblem
from etdeploy.export.hf.files import ADAPTER_WEIGHTS
from etdeploy.export.spec import ExportSpec, HfModel
from etdeploy.export.worker.failures import WorkerError, exception_text, fail
from etdeploy.export.worker.language.fetch import (
    Checkpoint,
    Tell,
    checkpoint_failure,
    fetch_adapter,
)
from etdeploy.export.worker.language.load import LoadedModel

_MATRIX = re.compile(
    r"(?P<layer>.+)\.lora_(?P<part>A|B|embedding_A|embedding_B|magnitude_vector)"
    r"(\.(?P<kind>weight|bias))?"
)
# Between the path of a layer and its own parameters, where peft has wrapped it.
_WRAPPERS = (".base_layer.", ".modules_to_save.")


@dataclass(frozen=True)
class LayerChange:
    """What an adapter does to a layer whose weight is of shape (outputs, inputs).

    Attributes:
        a: Of shape (rank, inputs).
        b: Of shape (outputs, rank); scaled.
        magnitude: DoRA's: the length that each row of the changed weight gets; None without.
        bias: That is added to the layer's; None without.
    """

    a: torch.Tensor
    b: torch.Tensor
    magnitude: torch.Tensor | None = None
    bias: torch.Tensor | None = None

    def merged(self, weight: torch.Tensor) -> torch.Tensor:
        """The layer's weight with the change."""
        changed = weight + self.b @ self.a
        if self.magnitude is None:
            return changed
        return changed * (self.magnitude / torch.linalg.norm(changed, dim=1)).unsqueeze(1)


@dataclass(frozen=True)
class Adapter:
    """An adapter that fits a model.

    Attributes:
        changes: By the layer's path in the model.
        parameters: What replaces parameters of the model, by their paths.
        note: A sentence for the user, or None.
    """

    checkpoint: Checkpoint
    changes: Mapping[str, LayerChange]
    parameters: Mapping[str, torch.Tensor]
    note: str | None = None


def with_adapters(spec: ExportSpec, loaded: LoadedModel, tell: Tell) -> LoadedModel:
    """The model with the recipe's adapters; the weights of those that are merged change in place.

    The quantized weight in the checkpoint is not carried over to a layer that changes.
    """
    merged = [_load(spec, each, loaded.model, tell) for each in spec.lora]
    apart = {name: _load(spec, each, loaded.model, tell) for name, each in spec.adapters.items()}
    for adapter in merged:
        _merge(loaded.model, adapter)
    changed = {path for adapter in merged for path in _changed_layers(adapter)}
    adapters = (*merged, *apart.values())
    return replace(
        loaded,
        adapters=tuple(adapter.checkpoint for adapter in adapters),
        apart=apart,
        notes=(*loaded.notes, *(adapter.note for adapter in adapters if adapter.note)),
        stored={path: weight for path, weight in loaded.stored.items() if path not in changed},
    )


def _merge(model: Any, adapter: Adapter) -> None:
    tied = model.get_output_embeddings() is not None and _is_tied(model)
    for path, tensor in adapter.parameters.items():
        module, _, name = path.rpartition(".")
        setattr(model.get_submodule(module), name, _parameter(tensor))
    for path, change in adapter.changes.items():
        layer = model.get_submodule(path)
        # A new parameter: what is tied to the old one has none of the adapter's changes.
        with torch.no_grad():
            layer.weight = _parameter(_turned(layer, change.merged(_turned(layer, layer.weight))))
            if change.bias is not None:
                layer.bias = _parameter(change.bias + (0 if layer.bias is None else layer.bias))
    if tied and not _is_tied(model):
        model.config.get_text_config(decoder=True).tie_word_embeddings = False
        model.config.tie_word_embeddings = False


def _changed_layers(adapter: Adapter) -> Iterator[str]:
    yield from adapter.changes
    yield from (path.rpartition(".")[0] for path in adapter.parameters)


def _is_tied(model: Any) -> bool:
    return bool(model.get_output_embeddings().weight is model.get_input_embeddings().weight)


def _parameter(tensor: torch.Tensor) -> torch.nn.Parameter:
    return torch.nn.Parameter(tensor.contiguous(), requires_grad=False)


def _turned(layer: torch.nn.Module, weight: torch.Tensor) -> torch.Tensor:
    """The weight of a layer as (outputs, inputs), or that as the layer has it."""
    return weight if isinstance(layer, torch.nn.Linear) else weight.T


class AdaptedLayer(torch.nn.Module):  # type: ignore[misc]
    """A layer with what an adapter adds to its outputs, whose own weight is not changed."""

    def __init__(self, base: torch.nn.Module, change: LayerChange) -> None:
        super().__init__()
        self.base, self.looks_up = base, isinstance(base, torch.nn.Embedding)
        own = _turned(base, base.weight)
        self.a = _parameter(change.a.T if self.looks_up else change.a)
        self.b = _parameter(change.b)
        self.bias = None if change.bias is None else _parameter(change.bias)
        self.factor = None
        if change.magnitude is not None:
            lengths = torch.linalg.norm(own + change.b @ change.a, dim=1)
            self.factor = _parameter(change.magnitude / lengths)

    @property
    def weight(self) -> torch.Tensor:
        """That of the layer."""
        weight: torch.Tensor = self.base.weight
        return weight

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """The outputs of the layer with the adapter."""
        out: torch.Tensor = self.base(inputs)
        inner = (
            torch.nn.functional.embedding(inputs, self.a)
            if self.looks_up
            else torch.nn.functional.linear(inputs, self.a)
        )
        added = torch.nn.functional.linear(inner, self.b, self.bias)
        if self.factor is None:
            return out + added
        bias = getattr(self.base, "bias", None)
        whole = out + added if bias is None else out - bias + added
        return whole * self.factor if bias is None else whole * self.factor + bias


def adapted_model(model: Any, adapter: Adapter) -> Any:
    """The model with an adapter; both share every layer that the adapter leaves as it is.

    What is done to a shared layer later, such as its quantization, is done to both.
    """
    shared: dict[int, Any] = {
        id(each): each
        for module in model.modules()
        for each in (
            *([] if any(True for _ in module.children()) else [module]),
            *module.parameters(recurse=False),
            *module.buffers(recurse=False),
            *(value for name, value in vars(module).items() if name.endswith("config")),
        )
    }
    layers = {id(module) for module in model.modules()}
    adapted = copy.deepcopy(model, dict(shared))
    for path, tensor in adapter.parameters.items():
        owner, _, name = path.rpartition(".")
        if id(module := adapted.get_submodule(owner)) in layers:
            module = copy.deepcopy(module, {id(each): each for each in module.parameters()})
            adapted.set_submodule(owner, module)
        setattr(module, name, _parameter(tensor))
    for path, change in adapter.changes.items():
        adapted.set_submodule(path, AdaptedLayer(adapted.get_submodule(path), change))
    return adapted


def require_adapters(spec: ExportSpec, tell: Tell) -> None:
    """Gets all adapters; refuses files that cannot be used, before the model is loaded."""
    for source in spec.all_adapters:
        _read(spec, source, tell)


def _read(spec: ExportSpec, source: HfModel, tell: Tell) -> tuple[Checkpoint, LoraConfig]:
    checkpoint = fetch_adapter(spec, source, tell)
    config = read_adapter(checkpoint.folder)
    if isinstance(config, ConfigProblem):
        raise checkpoint_failure(config, spec)
    return checkpoint, config


def _load(spec: ExportSpec, source: HfModel, model: Any, tell: Tell) -> Adapter:
    """An adapter of the spec, checked against the model."""
    checkpoint, config = _read(spec, source, tell)
    path = checkpoint.folder / ADAPTER_WEIGHTS
    matrices: dict[str, dict[str, torch.Tensor]] = {}
    parameters: dict[str, torch.Tensor] = {}
    for key, tensor in _tensors(path).items():
        own = key.removeprefix(PREFIX)
        if found := _MATRIX.fullmatch(own):
            bias = "_bias" if found["kind"] == "bias" else ""
            part = found["part"].removeprefix("embedding_") + bias
            matrices.setdefault(found["layer"], {})[part] = tensor
        else:
            for wrapper in _WRAPPERS:
                own = own.replace(wrapper, ".")
            parameters[own] = tensor
    _require_places(config, model, path, [*matrices], [*parameters])
    changes = {
        layer: _change(config, model.get_submodule(layer), layer, parts, path)
        for layer, parts in matrices.items()
    }
    for name, tensor in parameters.items():
        _require_shape(path, name, tensor, model.get_parameter(name).shape)
    _require_untied(config, model, path, {*changes, *(n.rpartition(".")[0] for n in parameters)})
    # peft saves embeddings as they are in the model, too, where an adapter changes them.
    others = {n: t for n, t in parameters.items() if not torch.equal(t, model.get_parameter(n))}
    # Meta's files are all called alike.
    is_named = spec.hf is not None and spec.hf.checkpoint is None
    note = base_note(config, source.name, spec.source) if is_named else None
    return Adapter(checkpoint, changes, others, note)


def _tensors(path: Path) -> dict[str, torch.Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return {key: tensor.float() for key, tensor in load_file(path).items()}
    except (SafetensorError, OSError) as error:
        raise _misfit(
            path, f"the adapter's weights are damaged: {exception_text(error)}", "Get them again."
        ) from error


def _require_places(
    config: LoraConfig, model: Any, path: Path, layers: list[str], parameters: list[str]
) -> None:
    """Refuses an adapter for what the model does not have."""
    import transformers

    modules, own = dict(model.named_modules()), dict(model.named_parameters(remove_duplicate=False))
    missing = [each for each in layers if each not in modules]
    missing += [each for each in parameters if each not in own]
    trained = config.base or "that it was trained for"
    if missing or not (layers or parameters):
        what = (
            f"what the model does not have: {listed(missing, counts=True)}"
            if missing
            else "nothing"
        )
        raise _misfit(
            path,
            f"the adapter changes {what}",
            f"Name the model {trained}. If it is the one that you named, merge the adapter with it "
            "in peft,\nand export the merged model.",
        )
    kinds = (torch.nn.Linear, torch.nn.Embedding, transformers.pytorch_utils.Conv1D)
    others = [each for each in layers if not isinstance(modules[each], kinds)]
    if others:
        name = type(modules[others[0]]).__name__
        raise _misfit(
            path,
            f"the adapter changes {listed(others, counts=True)}, a {name}; only linear layers and "
            "embeddings are supported",
            "Merge it with the model in peft, and export the merged model.",
        )


def _require_untied(config: LoraConfig, model: Any, path: Path, changed: set[str]) -> None:
    """Refuses what peft keeps in one with the layer that has the same weight."""
    modules = dict(model.named_modules())
    ends = (model.get_input_embeddings(), model.get_output_embeddings())
    touched = [name for name in sorted(changed) if any(modules[name] is end for end in ends)]
    if config.tied and touched and _is_tied(model):
        raise _misfit(
            path,
            f"the adapter changes {touched[0]} and the layer that shares its weight "
            "(ensure_weight_tying), which is not supported",
            "Merge it with the model in peft, and export the merged model.",
        )


def _change(
    config: LoraConfig,
    layer: Any,
    name: str,
    parts: Mapping[str, torch.Tensor],
    path: Path,
) -> LayerChange:
    for part in ("A", "B"):
        if part not in parts:
            raise _misfit(path, f"lora_{part} of {name} is missing", "Get the adapter again.")
    rank, (outputs, inputs) = config.rank_of(name), _turned(layer, layer.weight).shape
    shapes = {
        "A": (rank, inputs),
        "B": (outputs, rank),
        "magnitude_vector": (outputs,),
        "B_bias": (outputs,),
    }
    for part, tensor in parts.items():
        if part not in shapes:
            raise _misfit(path, f"lora_{part} of {name} is not known", "Merge it in peft.")
        _require_shape(path, f"lora_{part} of {name}", tensor, shapes[part])
    scale = config.scale_of(name)
    bias = parts.get("B_bias")
    return LayerChange(
        a=parts["A"],
        b=parts["B"] * scale,
        magnitude=parts.get("magnitude_vector"),
        bias=None if bias is None else bias * scale,
    )


def _require_shape(
    path: Path, name: str, tensor: torch.Tensor, wanted: torch.Size | tuple[int, ...]
) -> None:
    if tuple(tensor.shape) != tuple(wanted):
        raise _misfit(
            path,
            f"the adapter does not fit the model: {name} is {list(tensor.shape)}, and it would "
            f"have to be {list(wanted)}",
            "Name the model that the adapter was trained for. If it was trained with another "
            "vocabulary or rank\nthan its configuration has, merge it in peft and export the "
            "merged model.",
        )


def _misfit(path: Path, message: str, remedy: str) -> WorkerError:
    return fail("checkpoint", message, remedy=remedy, file=str(path))
