"""Exports programs for the tests of inspection; started as a process of its own.

python -m tests.support.program_export FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import ExecutorchBackendConfig, to_edge_transform_and_lower
from executorch.exir.passes.init_mutable_pass import InitializedMutableBufferPass


class Block(torch.nn.Module):  # type: ignore[misc]
    """Some layers that XNNPACK takes and some that it leaves."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = torch.nn.MultiheadAttention(32, 4, batch_first=True)
        self.layer = torch.nn.Linear(32, 32)
        self.norm = torch.nn.LayerNorm(32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mixed = x + self.attention(x, x, x)[0]
        return self.norm(self.layer(mixed))


class Counter(torch.nn.Module):  # type: ignore[misc]
    """Mutable state with an initial value, and outputs of other data types."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.arange(6, dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        self.count.add_(1)
        return self.count + x, x > 2, x.to(torch.float16)


def main(folder: Path) -> None:
    torch.manual_seed(0)
    folder.mkdir(parents=True, exist_ok=True)
    x = torch.randn(1, 8, 32)
    steps = torch.export.Dim("steps", min=2, max=16)
    block = torch.export.export(
        torch.nn.Sequential(Block(), Block()).eval(), (x,), dynamic_shapes=({1: steps},)
    )
    counter = torch.export.export(Counter(), (torch.arange(6),))
    programs = {
        "xnnpack": to_edge_transform_and_lower(block, partitioner=[XnnpackPartitioner()]),
        "portable": to_edge_transform_and_lower(block),
        "counter": to_edge_transform_and_lower(counter),
        "two_methods": to_edge_transform_and_lower({"forward": block, "count": counter}),
    }
    for name, edge in programs.items():
        # Without this pass the counter's first value is not stored.
        config = ExecutorchBackendConfig(passes=[InitializedMutableBufferPass(["count"])])
        (folder / f"{name}.pte").write_bytes(edge.to_executorch(config).buffer)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
