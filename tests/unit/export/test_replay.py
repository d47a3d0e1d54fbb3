"""What of a device's error a node's rounding explains."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from etdeploy.export.diff import ModelNode, NodeError
from etdeploy.export.worker.diff.replay import ObservedValue, Replayed


class Scaled(torch.nn.Module):  # type: ignore[misc]
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * 128).clamp(-8, 8)


class Quantized(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, bits: int) -> None:
        super().__init__()
        dtype = {8: torch.uint8, 16: torch.uint16}[bits]
        self.chosen = (2**-bits, 0, 0, 2**bits - 1, dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ops: Any = torch.ops.quantized_decomposed
        found: torch.Tensor = ops.dequantize_per_tensor(
            ops.quantize_per_tensor(torch.sigmoid(x), *self.chosen), *self.chosen
        )
        return found


def replayed(
    module: torch.nn.Module, x: torch.Tensor, operator: str, value: torch.Tensor, **further: Any
) -> NodeError:
    """The error of a value that a device gave for an operator."""
    program = torch.export.export(module, (x,))
    [at] = [node for node in program.graph.nodes if operator in str(node.target)]
    step = float(at.args[1]) if "quantize" in operator else None
    node = ModelNode(name=at.name, operator=operator, step=step)
    run = Replayed(program, {"x": x}, {at: ObservedValue(node, at, value)}, 1, **further)
    run.run(lambda *_: None)
    [error] = run.errors
    return error


def test_a_value_beyond_16_bit_floats_is_the_largest_of_them() -> None:
    x = torch.tensor([1.0, 1000.0, -1000.0])
    most = torch.finfo(torch.float16).max
    for largest in (most, torch.inf):
        given = torch.tensor([128.0, largest, -largest])
        error = replayed(Scaled(), x, "mul", given, dtype=torch.float16)
        assert (error.local_error, error.odd_places) == (0, 0)
    floats = replayed(Scaled(), x, "mul", torch.tensor([128.0, most, -most]))
    assert (floats.local_error or 0) > floats.allowed_error
    wrong = replayed(Scaled(), x, "mul", torch.tensor([most, most, -most]), dtype=torch.float16)
    assert (wrong.local_error or 0) > wrong.allowed_error


@pytest.mark.parametrize(("bits", "explained", "wrong"), [(8, 1, 2), (16, 7, 9)])
def test_a_quantized_value_may_be_steps_off(bits: int, explained: int, wrong: int) -> None:
    import torch.ao.quantization.fx._decomposed  # registers the operators

    x, module = torch.zeros(4), Quantized(bits)
    for steps, is_explained in ((explained, True), (wrong, False)):
        given = torch.full((4,), 0.5 + steps * module.chosen[0])
        error = replayed(module, x, ".quantize_per_tensor", given)
        assert ((error.local_error or 0) <= error.allowed_error) is is_explained
