"""The layers of a model that can be quantised before it is traced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch

from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.failures import blaming
from etdeploy.export.worker.loading.source import Source

L = TypeVar("L", bound=torch.nn.Module)
DEFAULT_GROUP_SIZE = 32


@dataclass(frozen=True)
class Layer(Generic[L]):
    """A layer, of however many methods it is a part.

    Attributes:
        module: The layer.
        paths: In the model of each method, as `named_modules()` has them; the first is its name.
    """

    module: L
    paths: tuple[str, ...]

    @property
    def name(self) -> str:
        """The path that a person is told."""
        return self.paths[0]


def layers_of(
    spec: ExportSpec, sources: Mapping[str, Source], kind: type[L]
) -> tuple[Layer[L], ...]:
    """The layers of a kind, each once."""
    found: dict[int, tuple[L, list[str]]] = {}
    names: set[str] = set()
    for method, source in sources.items():
        # A language model is a part of what its methods are traced from.
        root = source.module.model if spec.generation else source.module
        for path, layer in root.named_modules():
            if not isinstance(layer, kind):
                continue
            _, paths = found.setdefault(id(layer), (layer, []))
            if not paths and path in names:
                paths.append(f"{method}.{path}")
            paths.append(path)
            names.add(path)
    return tuple(Layer(layer, tuple(dict.fromkeys(paths))) for layer, paths in found.values())


def apply(config: Any, layers: Sequence[Layer[Any]], what: str) -> None:
    """Quantises the weights of layers in place, so that methods that share a layer share them.

    Args:
        config: torchao's.
        layers: All of one kind.
        what: They are, for a message: `the linear layers`.

    Raises:
        WorkerError: torchao cannot quantise one of them.
    """
    from torchao.quantization.quant_api import quantize_

    modules = {id(layer.module) for layer in layers}
    with blaming("quantization", f"{what} cannot be quantised:"):
        quantize_(
            torch.nn.ModuleList([layer.module for layer in layers]),
            config,
            filter_fn=lambda layer, _: id(layer) in modules,
        )
