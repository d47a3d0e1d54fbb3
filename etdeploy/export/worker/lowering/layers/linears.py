"""Linear layers: 8-bit dynamic activations, weights of 4 bits in groups or of 8 for each output.

With 8da4w, a language model has the parts of `_FINER` in 8 bits unless an override says otherwise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from etdeploy.backends.registry import backend_named
from etdeploy.backends.schemes import FLOAT_SCHEMES, GROUPED_SCHEMES, SEARCHED_SCHEMES
from etdeploy.core.console import count
from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.backends.base import lowering_of
from etdeploy.export.worker.failures import blaming
from etdeploy.export.worker.loading.source import Source
from etdeploy.export.worker.lowering.layers.found import DEFAULT_GROUP_SIZE, Layer, apply
from etdeploy.export.worker.lowering.layers.misfits import (
    attention_notes,
    left_notes,
    nothing_fits,
    nothing_wanted,
)
from etdeploy.export.worker.lowering.layers.scales import Activations, all_quantized_in_groups
from etdeploy.export.worker.lowering.overrides import first_match

Linears = Sequence[Layer[torch.nn.Linear]]


@dataclass(frozen=True)
class Wish:
    """How a linear layer is to be quantised.

    Attributes:
        scheme: Also one for floats.
        group_size: Weights that share a scale; None where the scheme has no groups.
        pattern: The override that says so; None where the recipe's scheme holds.
        finer: Which of the parts in 8 bits it is of; empty for others.
    """

    scheme: str
    group_size: int | None
    pattern: str | None = None
    finer: str = ""


def _is_output_layer(model: Any, layer: Layer[torch.nn.Linear]) -> bool:
    return layer.module is model.get_output_embeddings()


def _gives_shared_values(model: Any, layer: Layer[torch.nn.Linear]) -> bool:
    """Whether several heads of grouped-query attention share the values that it gives."""
    config = model.config.get_text_config(decoder=True)
    heads = getattr(config, "num_attention_heads", None)
    shared = getattr(config, "num_key_value_heads", None)
    if not (isinstance(heads, int) and isinstance(shared, int) and shared < heads):
        return False
    return layer.name.rpartition(".")[2] == "v_proj"


_EIGHT_BITS = "8da8w"
# Parts that lose more in 4 bits than they gain, by their names in notes. No later layer evens out
# an error of the output layer, and tied to embeddings in 8 bits it is stored once. All heads of a
# group add up the error of the values that they share, and the layer is small: on
# SmolLM2-135M-Instruct, 1.6 % of the file for a third of the KL divergence.
_FINER: Mapping[str, Callable[[Any, Layer[torch.nn.Linear]], bool]] = {
    "the output layer": _is_output_layer,
    "the values of grouped-query attention": _gives_shared_values,
}


def quantize_linears(
    spec: ExportSpec, sources: Mapping[str, Source], linears: Linears, activations: Activations
) -> Iterator[str]:
    """Quantises the linear layers that fit, in place; yields sentences for the user.

    Raises:
        WorkerError: None fits, or the overrides leave none.
    """
    finer = _finer_parts(spec, sources, linears)
    wishes = {layer.name: _wish(spec, layer, finer) for layer in linears}
    wanted = [layer for layer in linears if wishes[layer.name].scheme not in FLOAT_SCHEMES]
    if linears and not wanted:
        raise nothing_wanted(spec)
    outputs = lowering_of(spec).grouped_outputs
    attention = [layer.name for layer in wanted if _is_of_attention(layer.module)]
    wanted = [layer for layer in wanted if layer.name not in attention]
    fitting = [layer for layer in wanted if _fits(layer.module, wishes[layer.name], outputs)]
    if not fitting:
        exported = any(source.exported for source in sources.values())
        sizes = {wishes[layer.name].group_size for layer in wanted}
        modules = [each.module for each in wanted]
        raise nothing_fits(spec, modules, sizes, exported=exported, attention=bool(attention))
    for wish in dict.fromkeys(wishes[layer.name] for layer in fitting):
        of_wish = [layer for layer in fitting if wishes[layer.name] == wish]
        _apply(wish, of_wish, activations)
    left = [layer.name for layer in wanted if layer not in fitting]
    yield from left_notes({name: wishes[name].group_size for name in left}, outputs)
    yield from attention_notes(spec, attention)
    stays = {*left, *attention}
    done = {name: wish for name, wish in wishes.items() if name not in stays}
    chosen = Counter(wish.pattern for wish in done.values() if not wish.finer)
    yield _coverage_note(spec, chosen[None], _convolutions(sources))
    yield from _override_notes(spec, chosen)
    yield from _finer_notes(done)
    if spec.generation and any(wish.scheme in SEARCHED_SCHEMES for wish in done.values()):
        yield _scales_note(activations)


def _finer_parts(
    spec: ExportSpec, sources: Mapping[str, Source], linears: Linears
) -> dict[str, str]:
    """The parts of layers that have 8 bits where nothing else is said, by the layers' names."""
    mixed = {str(spec.quantization), _EIGHT_BITS} <= {*backend_named(str(spec.backend)).overrides}
    if not (spec.generation and spec.quantization in SEARCHED_SCHEMES and mixed):
        return {}
    model = next(iter(sources.values())).module.model
    return {
        layer.name: part
        for part, holds in _FINER.items()
        for layer in linears
        if holds(model, layer)
    }


def _wish(spec: ExportSpec, layer: Layer[Any], finer: Mapping[str, str]) -> Wish:
    found = first_match(spec, layer.paths)
    if found is None and layer.name in finer:
        return Wish(_EIGHT_BITS, None, finer=finer[layer.name])
    pattern, scheme = found or (None, str(spec.quantization))
    if scheme not in GROUPED_SCHEMES:
        return Wish(scheme, None, pattern)
    size = spec.group_size or DEFAULT_GROUP_SIZE
    return Wish(scheme, spec.override_groups.get(pattern or "", size), pattern)


def _is_of_attention(layer: torch.nn.Linear) -> bool:
    """Whether nn.MultiheadAttention takes its weights, and does not call it."""
    return isinstance(layer, torch.nn.modules.linear.NonDynamicallyQuantizableLinear)


def _fits(layer: torch.nn.Linear, wish: Wish, outputs: int) -> bool:
    if wish.group_size is None:
        return True
    return bool(layer.in_features % wish.group_size == 0 and layer.out_features % outputs == 0)


def _apply(wish: Wish, layers: Linears, activations: Activations) -> None:
    """Quantises the weights of layers in place."""
    from torchao.quantization.granularity import PerAxis
    from torchao.quantization.quant_api import Int8DynamicActivationIntxWeightConfig

    if wish.group_size is None:
        config = Int8DynamicActivationIntxWeightConfig(
            weight_dtype=torch.int8, weight_granularity=PerAxis(0)
        )
        apply(config, layers, "the linear layers")
        return
    with blaming("quantization", "the linear layers cannot be quantised:"):
        squares = [activations.mean_squares.get(id(layer.module)) for layer in layers]
        weights = [layer.module.weight for layer in layers]
        for layer, weight in zip(
            layers, all_quantized_in_groups(weights, wish.group_size, squares), strict=True
        ):
            layer.module.weight = torch.nn.Parameter(weight, requires_grad=False)


def _convolutions(sources: Mapping[str, Source]) -> int:
    modules = (m for source in sources.values() for m in source.module.modules())
    return len({id(m) for m in modules if isinstance(m, torch.nn.modules.conv._ConvNd)})


def _coverage_note(spec: ExportSpec, quantized: int, convolutions: int) -> str:
    note = f"{spec.quantization} quantised {count(quantized, 'linear layer')}"
    if not convolutions:
        return f"{note}."
    stay = "1 convolution stays" if convolutions == 1 else f"{convolutions} convolutions stay"
    return f"{note}; {stay} in floats."


def _override_notes(spec: ExportSpec, chosen: Counter[str | None]) -> Iterator[str]:
    parts = [
        f"{pattern} with {scheme}{_groups(spec, pattern)} "
        f"({count(chosen[pattern], 'linear layer')})"
        for pattern, scheme in spec.overrides
    ]
    if parts:
        yield f"Quantised with {spec.quantization}, except: {', '.join(parts)}."


def _finer_notes(wishes: Mapping[str, Wish]) -> Iterator[str]:
    parts = Counter(wish.finer for wish in wishes.values() if wish.finer)
    if parts:
        listed = " and ".join(f"{part} ({count(n, 'layer')})" for part, n in parts.items())
        yield (
            f"In 8 bits, since they lose the most in 4: {listed}. A pattern of export.overrides "
            "decides otherwise."
        )


def _scales_note(activations: Activations) -> str:
    if activations.mean_squares:
        return (
            f"The scales of 4-bit weights have the least error with the activations on "
            f"{activations.origin}; export.calibration names another text."
        )
    why = f": {activations.origin}" if activations.origin else ""
    return f"The scales of 4-bit weights are chosen by the weights alone{why}."


def _groups(spec: ExportSpec, pattern: str) -> str:
    size = spec.override_groups.get(pattern)
    return f" in groups of {size}" if size else ""
