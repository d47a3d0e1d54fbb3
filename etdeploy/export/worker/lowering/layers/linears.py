"""Linear layers: 8-bit dynamic activations, weights of 4 bits in groups or of 8 for each output."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from etdeploy.backends.schemes import FLOAT_SCHEMES, GROUPED_SCHEMES
from etdeploy.core.console import count
from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.backends.base import lowering_of
from etdeploy.export.worker.loading.source import Source
from etdeploy.export.worker.lowering.layers.found import DEFAULT_GROUP_SIZE, Layer, apply
from etdeploy.export.worker.lowering.layers.misfits import (
    attention_notes,
    left_notes,
    nothing_fits,
    nothing_wanted,
)
from etdeploy.export.worker.lowering.overrides import first_match

Linears = Sequence[Layer[torch.nn.Linear]]


@dataclass(frozen=True)
class Wish:
    """How a linear layer is to be quantised.

    Attributes:
        scheme: Also one for floats.
        group_size: Weights that share a scale; None where the scheme has no groups.
        pattern: The override that says so; None where the recipe's scheme holds.
    """

    scheme: str
    group_size: int | None
    pattern: str | None = None


def quantize_linears(
    spec: ExportSpec, sources: Mapping[str, Source], linears: Linears
) -> Iterator[str]:
    """Quantises the linear layers that fit, in place; yields sentences for the user.

    Raises:
        WorkerError: None fits, or the overrides leave none.
    """
    wishes = {layer.name: _wish(spec, layer) for layer in linears}
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
        apply(_config(wish), of_wish, "the linear layers")
    left = [layer.name for layer in wanted if layer not in fitting]
    yield from left_notes({name: wishes[name].group_size for name in left}, outputs)
    yield from attention_notes(spec, attention)
    stays = {*left, *attention}
    chosen = Counter(wish.pattern for name, wish in wishes.items() if name not in stays)
    yield _coverage_note(spec, chosen[None], _convolutions(sources))
    yield from _override_notes(spec, chosen)


def _wish(spec: ExportSpec, layer: Layer[Any]) -> Wish:
    pattern, scheme = first_match(spec, layer.paths) or (None, str(spec.quantization))
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


def _config(wish: Wish) -> Any:
    from torchao.quantization.granularity import PerAxis, PerGroup
    from torchao.quantization.quant_api import Int8DynamicActivationIntxWeightConfig

    if wish.group_size is None:
        return Int8DynamicActivationIntxWeightConfig(
            weight_dtype=torch.int8, weight_granularity=PerAxis(0)
        )
    return Int8DynamicActivationIntxWeightConfig(
        weight_dtype=torch.int4, weight_granularity=PerGroup(wish.group_size)
    )


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


def _groups(spec: ExportSpec, pattern: str) -> str:
    size = spec.override_groups.get(pattern)
    return f" in groups of {size}" if size else ""
