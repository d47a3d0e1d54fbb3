"""What is corrected in a program that torch.export traced."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from etdeploy.export.worker.lowering.overrides import module_path
from etdeploy.export.worker.tracing.structure import (
    ExampleInputs,
    fixed_size,
    input_values,
    shapes_of_graph,
)
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
        (four(nn.ModuleList), lambda layers: layers[::-2],
         ["decoder.layers.3", "decoder.layers.1"]),
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
    calls = [node for node in program.graph.nodes if node.op == "call_function"]
    assert [module_path(node) for node in calls] == paths
    assert not any("," in key for node in calls for key in node.meta["nn_module_stack"])


class Cache(nn.Module):  # type: ignore[misc]
    """Writes rows as Python does, which takes the first dimension of the values away."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(1, 1, 8, 2))

    def forward(self, x: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        self.rows[:, :, place] = x
        return self.rows * 2


def test_values_that_are_written_by_index_have_all_dimensions() -> None:
    call = ExampleInputs((torch.ones(1, 1, 3, 2), torch.tensor([1, 4, 5])))
    program = trace(Cache(), call, None, strict=False)
    use_known_operators(program)
    [written] = program.graph.find_nodes(
        op="call_function", target=torch.ops.aten.index_put_.default
    )
    assert written.args[2].meta["val"].shape == (1, 1, 3, 2)
    found, own = program.module(), Cache()
    for places in ([1, 4, 5], [-1, 0, -7]):
        inputs = (torch.randn(1, 1, 3, 2), torch.tensor(places))
        assert torch.equal(found(*inputs), own(*inputs))


class InParts(nn.Module):  # type: ignore[misc]
    """Fills `end` of an empty tensor's five columns, the last first, and may read it meanwhile."""

    def __init__(self, end: int = 5, read: bool = False) -> None:
        super().__init__()
        self.end, self.read = end, read

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = x.new_empty(2, 5)
        out[:, 3 : self.end] = y
        early = out[:, 3:].sum() if self.read else 0
        out[..., :3] = x
        return out * 2 + early if self.read else out * 2


def _empties(program: torch.export.ExportedProgram) -> list[str]:
    return [str(node.target) for node in program.graph.nodes if "empty" in str(node.target)]


def test_parts_of_an_empty_tensor_are_concatenated() -> None:
    call = ExampleInputs((torch.randn(2, 3), torch.randn(2, 1)))
    program = trace(InParts(), call, None, strict=False)
    assert _empties(program) == ["aten.new_empty.default"]
    use_known_operators(program)
    assert not _empties(program)
    assert torch.equal(program.module()(*call.args), InParts()(*call.args))
    [joined] = program.graph.find_nodes(op="call_function", target=torch.ops.aten.cat.default)
    assert (joined.meta["val"].shape, joined.args[1]) == ((2, 5), 1)
    assert not program.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)


@pytest.mark.parametrize("module", [InParts(end=4), InParts(read=True)])
def test_an_empty_tensor_with_other_values_stays(module: nn.Module) -> None:
    call = ExampleInputs((torch.randn(2, 3), torch.randn(2, 1)))
    program = trace(module, call, None, strict=False)
    before = program.graph_module.code
    use_known_operators(program)
    assert program.graph_module.code == before


class Positive(nn.Module):  # type: ignore[misc]
    """Gives the rows that begin with a positive number, as columns."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[x[:, 0] > 0].t().contiguous()


def test_a_size_that_depends_on_values_is_left_to_the_lowering() -> None:
    program = trace(Positive(), ExampleInputs((torch.ones(3, 4),)), None, strict=False)
    use_known_operators(program)
    [output] = program.graph.output_node().args[0]
    assert [str(size).startswith("u") for size in output.meta["val"].shape] == [False, True]


class Collecting(nn.Module):  # type: ignore[misc]
    def forward(self, x: torch.Tensor, *more: torch.Tensor) -> torch.Tensor:
        return x * more[0].sum() + more[1].sum()


@pytest.mark.parametrize("named", [False, True])
def test_a_graph_takes_one_by_one_what_a_module_collects(named: bool) -> None:
    module = Collecting()
    call = ExampleInputs((torch.ones(4), torch.ones(3), torch.ones(5)))
    of_x, of_more = {0: torch.export.Dim("x", max=8)}, ({0: torch.export.Dim("y", max=8)}, None)
    shapes = {"x": of_x, "more": of_more} if named else (of_x, of_more)
    graph = trace(module, call, shapes, strict=False).module()
    traced = trace(graph, call, shapes_of_graph(module, call, shapes), strict=False)
    assert [fixed_size(value.shape[0]) for value in input_values(traced)] == [None, None, 5]
    plain = nn.Linear(2, 2)
    assert shapes_of_graph(plain, ExampleInputs((torch.ones(2),)), (of_x,)) == (of_x,)
