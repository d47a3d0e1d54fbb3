"""Quantizes small models for Vulkan and prints what ExecuTorch would fuse to integer operators.

    python -m tests.support.vulkan_int8

Prints a JSON object: for each model, the operators that are fused with the shape of what each
takes first, whether the outputs have the shape of the model in floats, and how far they are from
those, relative to the largest.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from executorch.backends.vulkan.patterns import get_all_fusable_subgraphs
from executorch.exir import to_edge
from torch import nn
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

from etdeploy.export.worker.backends.vulkan import LOWERING
from tests.support.export import spec_of


class Between(nn.Module):  # type: ignore[misc]
    """Two layers, something that takes the outputs of both, and a layer that takes that."""

    def __init__(self, combine: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.first, self.second, self.last = (nn.Linear(16, 16) for _ in range(3))
        self.combine = combine

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.last(self.combine(self.first(x), self.second(y)))


def _models() -> dict[str, tuple[nn.Module, list[tuple[int, ...]]]]:
    """Each model with the shapes of its inputs."""
    image, rectified = nn.Conv2d(4, 8, 3), nn.Sequential(nn.Linear(16, 8), nn.ReLU())
    return {
        "sum": (Between(torch.add), [(1, 8, 16), (1, 8, 16)]),
        "sum_of_rows": (Between(torch.add), [(1, 8, 16), (1, 1, 16)]),
        "weighted_sum": (Between(lambda a, b: torch.add(a, b, alpha=2)), [(8, 16), (8, 16)]),
        "product": (Between(torch.mul), [(8, 16), (8, 16)]),
        "batch_of_rows": (rectified, [(3, 5, 16)]),
        "one_batch_of_rows": (rectified, [(1, 5, 16)]),
        "batch_of_images": (image, [(2, 4, 8, 8)]),
        "image": (image, [(1, 4, 8, 8)]),
        "signal": (nn.Conv1d(4, 8, 3), [(1, 4, 16)]),
    }


def _report(model: nn.Module, inputs: tuple[torch.Tensor, ...]) -> dict[str, Any]:
    spec = spec_of(
        {
            "model": {"example": "mlp"},
            "export": {"backend": "vulkan", "quantization": "int8_static"},
        }
    )
    model.eval()
    prepared = prepare_pt2e(torch.export.export(model, inputs).module(), LOWERING.quantizer(spec))
    prepared(*inputs)
    quantized = convert_pt2e(prepared)
    expected, given = model(*inputs), quantized(*inputs)
    LOWERING.partitioners(spec)
    edge = to_edge(torch.export.export(quantized, inputs)).exported_program()
    return {
        "fused": sorted(_fused(edge.graph_module)),
        "same_shape": list(given.shape) == list(expected.shape),
        "error": float((given - expected).abs().max() / expected.abs().max()),
    }


def _fused(graph: torch.fx.GraphModule) -> Iterator[str]:
    for match in get_all_fusable_subgraphs(graph):
        anchor = match.anchor_node
        # A linear layer's own operand is always a matrix; the operator gets what it was before.
        operand = getattr(match, "pattern_input_node", anchor.args[0])
        name = anchor.target.name().partition("::")[2].partition(".")[0]
        yield f"{name} {list(operand.meta['val'].shape)}"


def main(names: Sequence[str]) -> None:
    """Prints the report of these models."""
    torch.manual_seed(0)
    with torch.no_grad():
        reports = {
            name: _report(model, tuple(torch.randn(*shape) for shape in shapes))
            for name, (model, shapes) in _models().items()
            if name in names
        }
    sys.stdout.write(json.dumps(reports) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
