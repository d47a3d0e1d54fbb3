"""What the quantization of linear layers costs, measured with layers in place."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import nn

from etdeploy.backends.registry import backend_named
from etdeploy.export.diff import Sensitivity, more_exact_scheme
from etdeploy.export.worker.diff import sensitivity
from etdeploy.export.worker.diff.sensitivity import SensitivityMeasurement, measure_sensitivity
from etdeploy.export.worker.diff.switchable import QuantizedLinears
from etdeploy.export.worker.failures import fail
from etdeploy.export.worker.loading.source import MethodSource
from etdeploy.export.worker.lowering.linears import RoundedLayer
from etdeploy.export.worker.tracing.structure import ExampleInputs

WIDTH = 8


class Counting(nn.Module):  # type: ignore[misc]
    """Three blocks of two linear layers, and a buffer that each call changes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)) for _ in "abc"]
        self.blocks = nn.ModuleList(layers)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        for block in self.blocks:
            x = x + block(x)
        return x


@pytest.fixture
def model() -> tuple[Counting, QuantizedLinears]:
    """Its weights are rounded to eighths; those of the second block to halves."""
    module = Counting().eval()
    layers = []
    for name, layer in module.named_modules():
        if isinstance(layer, nn.Linear):
            layers.append(RoundedLayer(name, layer, layer.weight.requires_grad_(False)))
            step = 0.5 if name.startswith("blocks.1") else 0.125
            rounded = (layer.weight.detach() / step).round() * step
            layer.weight = nn.Parameter(rounded, requires_grad=False)
    return module.requires_grad_(False), QuantizedLinears.of(module, layers, "none")


def silent(text: str, share: float) -> None:
    pass


def in_place(modules: object) -> None:
    """The model cannot be quantized once more."""


def measured(
    model: QuantizedLinears, requantize: Callable[..., None] | None = in_place
) -> Sensitivity:
    source = MethodSource(model.module, ExampleInputs((torch.randn(4, WIDTH),)))
    return measure_sensitivity(model, source, requantize, silent)


def test_the_module_that_costs_most_is_found_and_nothing_changes(
    model: tuple[Counting, QuantizedLinears],
) -> None:
    module, linears = model
    before = {name: value.clone() for name, value in module.state_dict().items()}
    found = measured(linears)
    assert found.layers[0].module in ("blocks", "blocks.1")
    assert found.overrides
    assert all(name.startswith("blocks.1") for name in found.overrides)
    assert found.reached <= found.error / 2
    assert found.weights == 6 * WIDTH * WIDTH
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())


class Rooted(nn.Linear):  # type: ignore[misc]
    """Its own forward has a linear layer, too."""

    def __init__(self) -> None:
        super().__init__(WIDTH, WIDTH)
        self.blocks = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in "abc"))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.blocks(super().forward(x))
        return out


def rooted() -> QuantizedLinears:
    """The layer of its own forward is rounded coarsely, the others finely."""
    torch.manual_seed(0)
    module, layers = Rooted().eval().requires_grad_(False), []
    for name, layer in module.named_modules():
        if isinstance(layer, nn.Linear):
            layers.append(RoundedLayer(name, layer, layer.weight))
            step = 0.02 if name else 0.3
            rounded = (layer.weight / step).round() * step
            layer.weight = nn.Parameter(rounded, requires_grad=False)
    return QuantizedLinears.of(module, layers, "none")


def test_what_the_models_own_forward_computes_can_be_chosen() -> None:
    found = measured(rooted())
    assert (found.layers[0].module, found.layers[0].operators) == ("", 1)
    assert found.overrides == ("",)
    assert found.reached <= found.error / 2


def test_without_the_models_own_forward_if_nothing_could_be_quantized_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(measurement: SensitivityMeasurement, modules: Sequence[str], _: object) -> float:
        if "" in modules:
            raise fail("quantization", "nothing is quantized")
        return measurement.error(modules)

    monkeypatch.setattr(SensitivityMeasurement, "quantized_error", refuse)
    found = measured(rooted())
    assert found.overrides
    assert "" not in found.overrides


def test_errors_are_those_of_the_outputs(model: tuple[Counting, QuantizedLinears]) -> None:
    module, linears = model
    x = torch.randn(4, WIDTH)
    rounded = module(x)
    [exact] = linears.reference([x])
    assert torch.equal(linears.outputs([x], lambda _: False)[0], rounded)
    source = MethodSource(module, ExampleInputs((x,)))
    found = measure_sensitivity(linears, source, None, silent)
    difference = (rounded - exact).square().sum().sqrt() / exact.square().sum().sqrt()
    assert found.error == pytest.approx(float(difference), rel=1e-4)
    assert found.overrides == ()


def test_where_that_takes_long_single_layers_are_left_out(
    model: tuple[Counting, QuantizedLinears], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sensitivity, "_BUDGET_S", 0.0)
    monkeypatch.setattr(sensitivity, "_LARGE_PART", 0.5)
    modules = {layer.module for layer in measured(model[1]).layers}
    assert modules == {"blocks", "blocks.0", "blocks.1", "blocks.2"}


@pytest.mark.parametrize(
    ("backend", "scheme", "other"),
    [("xnnpack", "8da4w", "8da8w"), ("xnnpack", "8da8w", "none"),
     ("xnnpack", "int8_static", "none"), ("openvino", "int8_static", None)],
)  # fmt: skip
def test_what_overrides_have_instead(backend: str, scheme: str, other: str | None) -> None:
    assert more_exact_scheme(backend_named(backend), scheme) == other
