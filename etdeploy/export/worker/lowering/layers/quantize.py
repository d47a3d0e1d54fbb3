"""Linear layers and tables of embeddings, by torchao, as ExecuTorch's backends expect it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch.nn.utils import parametrize, remove_spectral_norm, remove_weight_norm
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from etdeploy.backends.schemes import FLOAT_SCHEMES, LINEAR_SCHEMES
from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.loading.source import Source
from etdeploy.export.worker.lowering.layers.embeddings import quantize_embeddings
from etdeploy.export.worker.lowering.layers.found import Layer, layers_of
from etdeploy.export.worker.lowering.layers.linears import quantize_linears
from etdeploy.export.worker.lowering.layers.scales import Activations
from etdeploy.export.worker.lowering.overrides import check_patterns


def quantize_layers(
    spec: ExportSpec, sources: Mapping[str, Source], activations: Activations
) -> tuple[str, ...]:
    """Quantises what the spec says; returns sentences for the user.

    Raises:
        WorkerError: The model has nothing that can be quantised that way.
    """
    linears = layers_of(spec, sources, torch.nn.Linear)
    for layer in linears:
        _store_computed_weight(layer.module)
    tables = layers_of(spec, sources, torch.nn.Embedding)
    _check_overrides(spec, linears, tables)
    return tuple(_quantized(spec, sources, linears, tables, activations))


def _store_computed_weight(layer: torch.nn.Linear) -> None:
    """Makes a weight that is computed from other parameters at each call, as weight_norm's, one."""
    if parametrize.is_parametrized(layer, "weight"):
        parametrize.remove_parametrizations(layer, "weight", leave_parametrized=True)
    for hook in list(layer._forward_pre_hooks.values()):  # of the older functions of that name
        if isinstance(hook, WeightNorm) and hook.name == "weight":
            remove_weight_norm(layer)
        elif isinstance(hook, SpectralNorm) and hook.name == "weight":
            remove_spectral_norm(layer)


def _quantized(
    spec: ExportSpec,
    sources: Mapping[str, Source],
    linears: Sequence[Layer[torch.nn.Linear]],
    tables: Sequence[Layer[torch.nn.Embedding]],
    activations: Activations,
) -> Iterator[str]:
    if spec.quantization in LINEAR_SCHEMES:
        yield from quantize_linears(spec, sources, linears, activations)
    if spec.embeddings:
        yield from quantize_embeddings(spec, tables)


def _check_overrides(
    spec: ExportSpec,
    linears: Sequence[Layer[torch.nn.Linear]],
    tables: Sequence[Layer[torch.nn.Embedding]],
) -> None:
    """A table can stay in floats; the other schemes are those of linear layers."""
    of_linears = [path for layer in linears for path in layer.paths]
    of_tables = [path for layer in tables for path in layer.paths] if spec.embeddings else []
    check_patterns(
        spec,
        lambda scheme: of_linears + of_tables if scheme in FLOAT_SCHEMES else of_linears,
        "no module with a linear layer",
    )
