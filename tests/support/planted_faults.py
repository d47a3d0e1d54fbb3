"""A model of 200 nodes, one of which computes wrongly in the program and right in eager.

The factory runs in the export's worker, where it replaces the function that hands the traced graph
to the backend: in that graph alone, a node's value is a little too large. Eager, the expected
outputs and the graph that is replayed stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

FACTOR = 1.01


class Layer(nn.Module):  # type: ignore[misc]
    """Five nodes."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.scale = nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(self.linear(x))
        return self.norm(x + y * self.scale)


class Layers(nn.Module):  # type: ignore[misc]
    """As many layers in a row."""

    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(width) for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def make(
    position: float | None = None, truth: str = "", layers: int = 40, factor: float = FACTOR
) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """The model, with its fault at that share of the graph; without one for None.

    The name of the wrong node is written to the file `truth` with the suffix `.truth`, so that the
    argument does not name a file, which would be part of the program's key.
    """
    torch.manual_seed(0)
    if position is not None:
        _plant(position, Path(f"{truth}.truth") if truth else None, factor)
    return Layers(layers, 32).eval(), (torch.randn(4, 32),)


def _plant(position: float, truth: Path | None, factor: float) -> None:
    from importlib import import_module

    pipeline: Any = import_module("etdeploy.export.worker.pipeline")
    lower = pipeline.lower

    def lower_wrongly(spec: Any, methods: Mapping[str, Any]) -> Any:
        methods = {name: replace(m, program=_copied(m.program)) for name, m in methods.items()}
        for method in methods.values():
            name = plant(method.program, position, factor)
            if truth:
                truth.write_text(name)
        return lower(spec, methods)

    pipeline.lower = lower_wrongly


def _copied(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    from etdeploy.export.worker.rewrites.order import copied_program

    return copied_program(program)


def plant(program: torch.export.ExportedProgram, position: float, factor: float) -> str:
    """Multiplies the value of a node, in place; returns the node's name."""
    from etdeploy.export.worker.diff.instrument import observables

    found = observables(program)
    each = found[min(len(found) - 1, int(position * len(found)))]
    # Of a quantized value what is quantized, so that the pattern of the kernel stays.
    node = each.node
    with program.graph.inserting_after(node):
        made = program.graph.call_function(torch.ops.aten.mul.Scalar, (node, factor))
    made.meta = dict(node.meta)
    node.replace_all_uses_with(made, delete_user_cb=lambda user: user is not made)
    program.graph_signature.replace_all_uses(node.name, made.name)
    program.graph_module.recompile()
    return str(node.name)
