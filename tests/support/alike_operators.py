"""What the lowering's checks make of operators that are alike.

`python -m tests.support.alike_operators` writes one line of JSON at the end.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from executorch.exir import to_edge
from executorch.exir.verification.arg_validator import EdgeOpArgValidator
from torch._subclasses.fake_tensor import FakeTensorMode

from etdeploy.export.worker.lowering.upstream_patches import (
    _RememberedByLook,
    results_remembered,
)


class Doubled(torch.nn.Module):  # type: ignore[misc]
    """Two operators that are alike."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The same twice."""
        return x + x, x + x


def refused() -> dict[str, Any]:
    """What ExecuTorch's check says of the second of two, which claims to give another type."""
    program = to_edge(torch.export.export(Doubled(), (torch.ones(2),))).exported_program()
    nodes = list(program.graph.nodes)
    given = [node.meta["val"] for node in nodes if node.op == "placeholder"]
    first, second = (node for node in nodes if node.op == "call_function")
    with results_remembered(), first.meta["val"].fake_mode:
        second.meta["val"] = second.meta["val"].to(torch.int32)
        check = EdgeOpArgValidator(program.graph_module)
        check.run(*given)
    names = [node.name for _, node in check.violating_ops.values()]
    return {"refused": names, "wrong": second.name}


def computed() -> dict[str, Any]:
    """Of which tensors a sum is computed, and what is given for each."""
    add, run = torch.ops.aten.add.Tensor, list[int]()
    with FakeTensorMode():
        tensors = [
            torch.empty(2, 3),
            torch.empty(2, 3),
            torch.empty(3, 2),
            torch.empty(3, 2).t(),
            torch.empty(2, 3, dtype=torch.float16),
        ]

        def call(target: Any, args: Any, kwargs: Any) -> Any:
            run.append(next(i for i, each in enumerate(tensors) if each is args[0]))
            return target(*args, **kwargs)

        remembered = _RememberedByLook()
        given = [_look(remembered.call(call, add, (each, each), {})) for each in tensors]
        wanted = [_look(each + each) for each in tensors]
    return {"run": run, "given": given, "wanted": wanted}


def _look(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype} {tuple(tensor.shape)} {tensor.stride()}"


if __name__ == "__main__":
    sys.stdout.write("\n" + json.dumps(refused() | computed()) + "\n")
