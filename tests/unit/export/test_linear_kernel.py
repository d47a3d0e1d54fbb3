"""Linear layers with quantized weights, as calls of etdeploy's kernels."""

from __future__ import annotations

import pytest
import torch

from etdeploy.export.worker.lowering.linear_kernel import KernelLinear, linears_in_kernel
from etdeploy.export.worker.rewrites.base import Log
from tests.support.quantized_linear import quantized_linear


@pytest.mark.parametrize(
    ("inputs", "group_size", "bias"),
    [(96, 32, True), (128, 64, False), (256, 128, True), (96, None, True), (256, None, False)],
)
def test_the_operator_gives_what_the_layer_does(
    inputs: int, group_size: int | None, bias: bool
) -> None:
    torch.manual_seed(0)
    layer = quantized_linear(inputs, 48, group_size, bias=bias)
    x = torch.randn(1, 7, inputs)
    x[0, 1], x[0, 2] = 0.0, x[0, 2].abs() + 1  # no range, and one that does not begin at 0
    with torch.no_grad():
        wanted, found = layer(x), KernelLinear(layer)(x)
    assert found.shape == wanted.shape
    assert float((found - wanted).abs().max()) < 1e-5 * float(wanted.abs().max())


def test_layers_that_fit_are_calls_within_the_block() -> None:
    layers = {
        "fits": quantized_linear(64, 32, 32),
        "bytes": quantized_linear(64, 32, None),
        "floats": torch.nn.Linear(64, 32),
        "outputs": quantized_linear(64, 24, 32),
        "inputs": quantized_linear(48, 32, 16),
        "bytes of other outputs": quantized_linear(64, 40, None),
        "bytes of other inputs": quantized_linear(48, 32, None),
    }
    model = torch.nn.ModuleDict(layers | {"again": layers["fits"]})
    log = Log(("linears",))
    with linears_in_kernel([model, torch.nn.Sequential(model)], log.of("linears")):
        taken = {name for name, each in model.items() if isinstance(each, KernelLinear)}
        assert taken == {"fits", "bytes", "again"}
        assert model["fits"] is model["again"]
    assert log.applied["linears"] == 2
    assert {name: model[name] for name in layers} == layers


def test_layers_return_after_an_error() -> None:
    model = torch.nn.Sequential(quantized_linear(64, 32, 32))
    with (
        pytest.raises(ValueError, match="broken"),
        linears_in_kernel([model], Log(("linears",)).of("linears")),
    ):
        raise ValueError("broken")
    assert isinstance(model[0], torch.nn.Linear)
