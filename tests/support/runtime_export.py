"""Exports the small programs that the runner's tests run; started as a process of its own.

    python -m tests.support.runtime_export FOLDER

Each program gets a folder with `program.pte`, `inputs/<i>.bin`, `expected/<i>.bin` and
`tensors.json`, which gives dtype and shape of each of these files.
"""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from typing import Any

import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import ExecutorchBackendConfig, to_edge_transform_and_lower
from executorch.exir.passes import MemoryPlanningPass
from executorch.exir.passes.init_mutable_pass import InitializedMutableBufferPass

from etdeploy.export.worker.tracing.tensors import NamedValue, plain


class Mlp(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class ChannelsLast(torch.nn.Module):  # type: ignore[misc]
    """Takes and gives channels-last tensors, so that their bytes are not in contiguous order."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x)


class Classes(torch.nn.Module):  # type: ignore[misc]
    """Logits of three classes: how red, green and blue an image is."""

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        return 4 * pixel_values.mean((2, 3))


class Letters(torch.nn.Module):  # type: ignore[misc]
    """Logits of four letters for each 100 samples, by how loud they are: a model of speech."""

    def forward(self, input_values: torch.Tensor) -> torch.Tensor:
        loud = input_values.abs().reshape(1, -1, 100).mean(-1, keepdim=True)
        return -((loud - torch.tensor([0.0, 0.2, 0.4, 0.8])) ** 2)


class Counter(torch.nn.Module):  # type: ignore[misc]
    """Has state: every call gives a larger result than the one before."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        return x + self.count


class TwoInputs(torch.nn.Module):  # type: ignore[misc]
    """Inputs of two kinds, outputs of three: a float tensor, an integer tensor and an int."""

    def forward(
        self, x: torch.Tensor, index: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, int]:
        return torch.index_select(x, 1, index), index + 1, x.shape[0]


class PlainInputs(torch.nn.Module):  # type: ignore[misc]
    """Takes and gives values of every kind."""

    def forward(
        self, x: torch.Tensor, whole: int, number: float, flag: bool, nothing: None
    ) -> dict[str, Any]:
        out = x * number + (whole if flag else 0)
        return {"out": out, "whole": whole, "number": number, "flag": flag, "nothing": nothing}


def main(folder: Path) -> None:
    torch.manual_seed(0)
    rows = torch.export.Dim("rows", min=1, max=8)
    image = torch.randn(1, 3, 4, 5).to(memory_format=torch.channels_last)
    xnnpack = [XnnpackPartitioner()]
    _export(folder / "mlp_portable", Mlp(), (torch.randn(2, 16),))
    _export(folder / "mlp_xnnpack", Mlp(), (torch.randn(2, 16),), partitioner=xnnpack)
    _export(folder / "channels_last", ChannelsLast(), (image,))
    _export(folder / "counter", Counter(), (torch.randn(3),))
    _export(
        folder / "two_inputs",
        TwoInputs(),
        (torch.randn(2, 6), torch.tensor([5, 0, 3])),
        dynamic_shapes={"x": {0: rows}, "index": None},
    )
    values = (torch.randn(2, 3), 2**62 + 1, 1e-20, True, None)
    _export(folder / "plain_inputs", PlainInputs(), values)
    _export(folder / "classes", Classes(), (torch.randn(1, 3, 48, 64),))
    _export(folder / "letters", Letters(), (torch.randn(1, 1600),))
    _export(folder / "unplanned", Mlp(), (torch.randn(2, 16),), plan_memory=False)


def _export(
    folder: Path,
    module: torch.nn.Module,
    inputs: tuple[Any, ...],
    partitioner: list[Any] | None = None,
    dynamic_shapes: Any = None,
    plan_memory: bool = True,
) -> None:
    module.eval()
    exported = torch.export.export(module, inputs, dynamic_shapes=dynamic_shapes)
    # A copy: the exported program shares the module's buffers, whose first values count.
    expected = copy.deepcopy(module)(*inputs)
    expected = tuple(expected.values()) if isinstance(expected, dict) else expected
    expected = expected if isinstance(expected, tuple) else (expected,)
    planning = MemoryPlanningPass(alloc_graph_input=plan_memory, alloc_graph_output=plan_memory)
    program = to_edge_transform_and_lower(exported, partitioner=partitioner).to_executorch(
        ExecutorchBackendConfig(
            memory_planning_pass=planning, passes=[InitializedMutableBufferPass(["count"])]
        )
    )
    folder.mkdir(parents=True)
    (folder / "program.pte").write_bytes(program.buffer)
    tensors = {
        "inputs": _save(folder, "inputs", inputs),
        "expected": _save(folder, "expected", expected),
    }
    (folder / "tensors.json").write_text(json.dumps(tensors))


def _save(folder: Path, name: str, values: tuple[Any, ...]) -> list[dict[str, Any]]:
    (folder / name).mkdir()
    described = []
    for i, value in enumerate(values):
        if not isinstance(value, torch.Tensor):
            described.append(plain(NamedValue("", value)).model_dump())
            continue
        (folder / name / f"{i}.bin").write_bytes(value.contiguous().detach().numpy().tobytes())
        described.append(
            {
                "path": f"{name}/{i}.bin",
                "dtype": str(value.dtype).removeprefix("torch."),
                "shape": list(value.shape),
            }
        )
    return described


if __name__ == "__main__":
    main(Path(sys.argv[1]))
