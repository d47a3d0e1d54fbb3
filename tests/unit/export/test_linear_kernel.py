"""Linear layers with 4-bit weights, as calls of etdeploy's kernel."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from etdeploy.export.worker.lowering.linear_kernel import KernelLinear, linears_in_kernel
from etdeploy.export.worker.lowering.scales import quantized_in_groups
from etdeploy.export.worker.rewrites.base import Log


def layer_of(inputs: int, outputs: int, group_size: int | None, *, bias: bool = True) -> Any:
    layer = torch.nn.Linear(inputs, outputs, bias=bias)
    if group_size:
        weight = quantized_in_groups(layer.weight.detach(), group_size, None)
        layer.weight = torch.nn.Parameter(weight, requires_grad=False)
    return layer


@pytest.mark.parametrize(
    ("inputs", "group_size", "bias"), [(96, 32, True), (128, 64, False), (256, 128, True)]
)
def test_the_operator_gives_what_the_layer_does(inputs: int, group_size: int, bias: bool) -> None:
    torch.manual_seed(0)
    layer = layer_of(inputs, 48, group_size, bias=bias)
    x = torch.randn(1, 7, inputs)
    x[0, 1], x[0, 2] = 0.0, x[0, 2].abs() + 1  # no range, and one that does not begin at 0
    with torch.no_grad():
        wanted, found = layer(x), KernelLinear(layer)(x)
    assert found.shape == wanted.shape
    assert float((found - wanted).abs().max()) < 1e-5 * float(wanted.abs().max())


def test_layers_that_fit_are_calls_within_the_block() -> None:
    layers = {
        "fits": layer_of(64, 32, 32),
        "floats": layer_of(64, 32, None),
        "outputs": layer_of(64, 24, 32),
        "inputs": layer_of(48, 32, 16),
    }
    model = torch.nn.ModuleDict(layers | {"again": layers["fits"]})
    log = Log(("linears",))
    with linears_in_kernel([model, torch.nn.Sequential(model)], log.of("linears")):
        taken = {name for name, each in model.items() if isinstance(each, KernelLinear)}
        assert taken == {"fits", "again"}
        assert model["fits"] is model["again"]
    assert log.applied["linears"] == 1
    assert {name: model[name] for name in layers} == layers


def test_layers_return_after_an_error() -> None:
    model = torch.nn.Sequential(layer_of(64, 32, 32))
    with (
        pytest.raises(ValueError, match="broken"),
        linears_in_kernel([model], Log(("linears",)).of("linears")),
    ):
        raise ValueError("broken")
    assert isinstance(model[0], torch.nn.Linear)
