"""Linear layers and tables of embeddings, by torchao, as ExecuTorch's backends expect it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch

from etdeploy.backends.schemes import FLOAT_SCHEMES, LINEAR_SCHEMES
from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.loading.source import Source
from etdeploy.export.worker.lowering.layers.embeddings import quantize_embeddings
from etdeploy.export.worker.lowering.layers.found import Layer, layers_of
from etdeploy.export.worker.lowering.layers.linears import quantize_linears
from etdeploy.export.worker.lowering.overrides import check_patterns


def quantize_layers(spec: ExportSpec, sources: Mapping[str, Source]) -> tuple[str, ...]:
    """Quantises what the spec says; returns sentences for the user.

    Raises:
        WorkerError: The model has nothing that can be quantised that way.
    """
    linears = layers_of(spec, sources, torch.nn.Linear)
    tables = layers_of(spec, sources, torch.nn.Embedding)
    _check_overrides(spec, linears, tables)
    return tuple(_quantized(spec, sources, linears, tables))


def _quantized(
    spec: ExportSpec,
    sources: Mapping[str, Source],
    linears: Sequence[Layer[torch.nn.Linear]],
    tables: Sequence[Layer[torch.nn.Embedding]],
) -> Iterator[str]:
    if spec.quantization in LINEAR_SCHEMES:
        yield from quantize_linears(spec, sources, linears)
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
