"""What is corrected in a program that torch.export traced."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from etdeploy.export.worker.lowering.overrides import module_path
from etdeploy.export.worker.tracing.structure import ExampleInputs
from etdeploy.export.worker.tracing.trace import trace, use_known_operators


class Decoder(nn.Module):  # type: ignore[misc]
    """Runs some of its layers."""

    def __init__(self, layers: nn.Module, used: Callable[[nn.Module], nn.Module]) -> None:
        super().__init__()
        self.layers, self.used = layers, used

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chosen = self.used(self.layers)
        if isinstance(chosen, nn.Sequential):
            return chosen(x)
        for layer in chosen:
            x = layer(x)
        return x


class Wrapper(nn.Module):  # type: ignore[misc]
    """Has the decoder under two names, as a method of a vision-language model has."""

    def __init__(self, decoder: nn.Module) -> None:
        super().__init__()
        self.decoder, self.model = decoder, nn.ModuleDict({"text": decoder})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.decoder(x)


def four(kind: Callable[[list[nn.Module]], nn.Module]) -> nn.Module:
    return kind([nn.Linear(2, 2) for _ in range(4)])


@pytest.mark.parametrize(
    ("layers", "used", "paths"),
    [
        (four(nn.ModuleList), lambda layers: layers[:2], ["decoder.layers.0", "decoder.layers.1"]),
        (four(nn.ModuleList), lambda layers: layers[2:], ["decoder.layers.2", "decoder.layers.3"]),
        (four(nn.ModuleList), lambda layers: layers[-1:], ["decoder.layers.3"]),
        (four(nn.ModuleList), lambda layers: layers[::-2], ["decoder.layers.3", "decoder.layers.1"]),
        (four(nn.ModuleList), lambda layers: layers[1:][1:2], ["decoder.layers.2"]),
        (four(lambda each: nn.Sequential(*each)), lambda layers: layers[2:],
         ["decoder.layers.2", "decoder.layers.3"]),
    ],
)  # fmt: skip
def test_modules_of_a_slice_have_their_own_names(
    layers: nn.Module, used: Callable[[nn.Module], nn.Module], paths: list[str]
) -> None:
    model = Wrapper(Decoder(layers, used)).eval()
    program = trace(model, ExampleInputs((torch.ones(1, 2),)), None, strict=False)
    found = [module_path(node) for node in program.graph.nodes if node.op == "call_function"]
    assert found == paths


class Positive(nn.Module):  # type: ignore[misc]
    """Gives the rows that begin with a positive number, as columns."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[x[:, 0] > 0].t().contiguous()


def test_a_size_that_depends_on_values_is_left_to_the_lowering() -> None:
    program = trace(Positive(), ExampleInputs((torch.ones(3, 4),)), None, strict=False)
    use_known_operators(program)
    [output] = program.graph.output_node().args[0]
    assert [str(size).startswith("u") for size in output.meta["val"].shape] == [False, True]
