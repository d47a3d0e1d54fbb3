"""What the linear layers of a language model are given while it reads a text."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from etdeploy.core.console import count
from etdeploy.export.spec import ExportSpec
from etdeploy.export.texts import BUNDLED_TEXTS
from etdeploy.export.worker.expected.forward import OwnForward, own_attention
from etdeploy.export.worker.expected.text import TokenizedText, calibration_parts
from etdeploy.export.worker.failures import WorkerError, blaming
from etdeploy.export.worker.loading.hf.load import LoadedModel
from etdeploy.export.worker.lowering.layers.scales import Activations


def activations(spec: ExportSpec, loaded: LoadedModel, attention: str) -> Activations:
    """Mean squared inputs of the linear layers, on the text that calibrates the model.

    Args:
        spec: Of the export.
        loaded: The model, not quantised yet.
        attention: transformers' name of the model's own attention.

    Raises:
        WorkerError: The recipe's text cannot be read, or the model raises with it.
    """
    if spec.calibration_text is None:
        return Activations(origin="export.calibration is none")
    text = calibration_parts(spec, loaded)
    if text is None:
        return Activations(origin="the model has no tokenizer that reads the calibration text")
    try:
        squares = mean_squares(loaded.model, attention, text)
    except WorkerError as error:
        if spec.calibration_text not in BUNDLED_TEXTS:
            raise
        return Activations(origin=error.failure.message)
    tokens = sum(map(len, text.parts))
    return Activations(squares, f"{count(tokens, 'token')} of {text.file}")


def mean_squares(model: Any, attention: str, text: TokenizedText) -> dict[int, torch.Tensor]:
    """The mean squared inputs of each linear layer that is called, by its `id()`."""
    raised = blaming("calibration", f"the model raised when it read {text.file}:")
    with _summing(model) as sums, own_attention(model, attention), raised:
        for part in text.parts:
            OwnForward(model).last(part)
    return {layer: each.squares / each.count for layer, each in sums.items()}


@dataclass
class _Sum:
    squares: torch.Tensor
    count: int = 0


@contextmanager
def _summing(model: Any) -> Iterator[dict[int, _Sum]]:
    """Sums the squared inputs of each linear layer that is called in the block, by its `id()`."""
    sums: dict[int, _Sum] = {}

    def add(layer: torch.nn.Linear, inputs: tuple[torch.Tensor, ...]) -> None:
        rows = inputs[0].detach().float().reshape(-1, layer.in_features)
        each = sums.setdefault(id(layer), _Sum(torch.zeros(layer.in_features)))
        each.squares += rows.square().sum(0)
        each.count += len(rows)

    linears = [layer for layer in model.modules() if isinstance(layer, torch.nn.Linear)]
    hooks = [layer.register_forward_pre_hook(add) for layer in linears]
    try:
        yield sums
    finally:
        for hook in hooks:
            hook.remove()
