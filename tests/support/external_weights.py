"""Exports a small model with its weights inside of the program, and outside.

`python -m tests.support.external_weights FOLDER` writes `FOLDER/inside/model.pte`, and
`FOLDER/outside/model.pte` with `weights.ptd` beside it, whose layers XNNPACK computes in part.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import ExecutorchBackendConfig, to_edge_transform_and_lower
from executorch.exir.passes.external_constants_pass import (
    delegate_external_constants_pass_unlifted,
)


class Model(torch.nn.Module):  # type: ignore[misc]
    """A layer that XNNPACK computes, and a table of weights that it does not take."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)
        self.table = torch.nn.Parameter(torch.randn(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.atan(self.layer(x)) * torch.erf(self.table)


def named(_node: Any) -> str:
    """The file that a weight belongs in, without its suffix."""
    return "weights"


def export(folder: Path, model: torch.nn.Module, *, outside: bool) -> None:
    """Writes the program, and what is outside of it."""
    folder.mkdir()
    example = (torch.zeros(2, 8),)
    module: Any = torch.export.export(model, example).module()
    if outside:
        delegate_external_constants_pass_unlifted(module, gen_tag_fn=named)
    edge = to_edge_transform_and_lower(
        torch.export.export(module, example), partitioner=[XnnpackPartitioner()]
    )
    made = edge.to_executorch(
        ExecutorchBackendConfig(external_constants=named if outside else False)
    )
    with (folder / "model.pte").open("wb") as stream:
        made.write_to_file(stream)
    made.write_tensor_data_to_file(str(folder))


def main(folder: Path) -> None:
    """See above."""
    torch.manual_seed(0)
    model = Model().eval()
    export(folder / "inside", model, outside=False)
    export(folder / "outside", model, outside=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
