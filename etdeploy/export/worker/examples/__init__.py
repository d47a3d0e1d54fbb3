"""Bundled models with real layers and random weights."""

from __future__ import annotations

from collections.abc import Callable

from etdeploy.export.worker.examples.base import Example
from etdeploy.export.worker.examples.convnet import convnet
from etdeploy.export.worker.examples.encoder import encoder
from etdeploy.export.worker.examples.mlp import mlp
from etdeploy.export.worker.examples.transformer import transformer

EXAMPLES: dict[str, Callable[..., Example]] = {
    "mlp": mlp,
    "convnet": convnet,
    "encoder": encoder,
    "transformer": transformer,
}

__all__ = ["EXAMPLES", "Example"]
