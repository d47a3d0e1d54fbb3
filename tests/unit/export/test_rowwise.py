"""Weights whose floats are computed by rows."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from etdeploy.export.worker.lowering import rowwise
from etdeploy.export.worker.lowering.rowwise import (
    RowwiseWeight,
    dequantized_by_rows,
    evaluated_bytes,
    hold_floats,
    mapped_state,
)
from etdeploy.export.worker.lowering.scales import quantized_in_groups
from etdeploy.export.worker.lowering.stored import StoredWeight


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of three rows, so that weights of ten are computed in several."""
    monkeypatch.setattr(rowwise, "_AT_ONCE", 3 * 64)


@pytest.fixture(params=[1, 2, 3])
def _threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def _half(rows: int = 10) -> RowwiseWeight:
    return RowwiseWeight(torch.randn(rows, 64).to(torch.bfloat16))


def _layer(weight: torch.Tensor, *, bias: bool = True) -> torch.nn.Linear:
    layer = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=bias)
    layer.weight = torch.nn.Parameter(weight, requires_grad=False)
    return layer.requires_grad_(False)


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("shape", [(64,), (5, 64), (2, 5, 64)])
def test_a_layer_computes_what_it_does_with_all_floats(shape: tuple[int, ...]) -> None:
    weight, inputs = _half(), torch.randn(shape)
    layer = _layer(weight)
    wanted = torch.nn.functional.linear(inputs, weight.stored.float(), layer.bias)
    torch.testing.assert_close(layer(inputs), wanted)
    assert isinstance(layer.weight, RowwiseWeight)
    assert layer.weight.dtype == torch.float32


@pytest.mark.usefixtures("_threads")
def test_gradients_of_inputs_are_those_with_all_floats() -> None:
    weight, inputs = _half(), torch.randn(5, 64, requires_grad=True)
    outputs = _layer(weight, bias=False)(inputs)
    [found] = torch.autograd.grad(outputs.sum(), inputs)
    plain = inputs @ weight.stored.float().T
    [wanted] = torch.autograd.grad(plain.sum(), inputs)
    torch.testing.assert_close(found, wanted)


def test_other_operators_see_floats() -> None:
    weight = _half()
    floats = weight.stored.float()
    assert torch.equal(weight.detach()[2:5], floats[2:5])
    assert torch.equal(weight.float().unflatten(1, (-1, 32)), floats.unflatten(1, (-1, 32)))
    assert torch.equal(weight * 2, floats * 2)
    assert torch.equal(torch.cat([weight, floats]), torch.cat([floats, floats]))
    inputs = torch.randn(5, 64)
    torch.testing.assert_close(
        torch.nn.functional.linear(input=inputs, weight=weight), inputs @ floats.T
    )
    table = torch.nn.Embedding(10, 64, _weight=torch.nn.Parameter(weight, requires_grad=False))
    tokens = torch.tensor([[3, 0], [7, 3]])
    assert torch.equal(table(tokens), floats[tokens])


def test_a_weight_that_is_computed_is_not_changed_in_place() -> None:
    weight = _half()
    with pytest.raises(TypeError, match=r"mul_.* would change a weight"):
        weight.mul_(2)
    torch.empty(10, 64).copy_(weight)


def test_a_copy_of_a_module_shares_what_is_stored() -> None:
    layer = _layer(_half())
    copied = copy.deepcopy(torch.nn.ModuleList([layer, layer]))
    assert copied[0].weight is copied[1].weight is not layer.weight
    assert isinstance(copied[0].weight, torch.nn.Parameter)
    assert copied[0].weight.stored is layer.weight.stored


def test_floats_of_tied_weights_are_made_once() -> None:
    weight = torch.nn.Parameter(_half(), requires_grad=False)
    table, layer = torch.nn.Embedding(10, 64), _layer(torch.zeros(10, 64))
    table.weight = layer.weight = weight
    model = torch.nn.ModuleList([table, layer])
    hold_floats(model)
    assert type(table.weight) is torch.nn.Parameter
    assert table.weight is layer.weight
    assert torch.equal(table.weight, weight.stored.float())
    assert not table.weight.requires_grad


def test_large_16_bit_weights_of_a_checkpoint_are_computed(tmp_path: Path) -> None:
    tensors = {
        "large": torch.randn(10, 64).to(torch.float16),
        "small": torch.randn(3, 64).to(torch.bfloat16),
        "floats": torch.randn(10, 64),
        "experts": torch.randn(2, 10, 64).to(torch.bfloat16),
    }
    save_file(tensors, tmp_path / "model.safetensors")
    found = mapped_state(tmp_path)
    assert {name: type(each) is RowwiseWeight for name, each in found.items()} == {
        "large": True,
        "small": False,
        "floats": False,
        "experts": False,
    }
    for name, tensor in tensors.items():
        assert torch.equal(found[name] * 1.0, tensor.float() if name == "large" else tensor), name


@pytest.mark.parametrize("zero", [None, 0.0, 3.0, -8.0])
def test_a_checkpoints_integers_are_computed_by_rows(zero: float | None) -> None:
    values = torch.randint(-8, 8, (10, 64), dtype=torch.int8)
    scales = torch.rand(10, 2) + 0.01
    zeros = None if zero is None else torch.full((10, 2), zero)
    offsets = None if zeros is None else 0 - scales * zeros
    found = StoredWeight("AWQ", 4, values, scales, offsets).by_rows()
    assert found is not None
    assert found.stored is values
    whole = values.float() - (zero or 0.0)
    assert torch.equal(found.floats(), whole * scales.repeat_interleave(32, 1))


def test_a_checkpoints_offsets_that_are_no_zero_points_stay_floats() -> None:
    values, scales = torch.zeros(10, 64, dtype=torch.int8), torch.full((10, 2), 0.1)
    offsets = torch.full((10, 2), 0.025)
    assert StoredWeight("int4", 4, values, scales, offsets).by_rows() is None
    assert StoredWeight("int4", 4, values, torch.zeros(10, 2), offsets).by_rows() is None
    assert StoredWeight("fp8", 8).by_rows() is None


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("zero", [0, 3])
def test_a_quantized_layer_computes_as_torchao_does(zero: int) -> None:
    layer = _layer(quantized_in_groups(torch.randn(10, 64), 32, None))
    layer.weight.zero_point = torch.full_like(layer.weight.zero_point, zero)
    inputs = torch.randn(5, 64)
    wanted, floats = layer(inputs), layer.weight.dequantize()
    with dequantized_by_rows():
        torch.testing.assert_close(layer(inputs), wanted)
        values = layer.weight.dequantize()
        assert isinstance(values, RowwiseWeight)
        assert torch.equal(values * 1.0, floats)
        with dequantized_by_rows():
            assert layer.weight.dequantize() is values
    assert torch.equal(layer.weight.dequantize(), floats)


@pytest.mark.parametrize("zero", [0, 3])
def test_only_the_rows_of_tokens_are_dequantized_of_a_table(zero: int) -> None:
    table = torch.nn.Embedding(10, 64)
    table.weight = torch.nn.Parameter(
        quantized_in_groups(table.weight.detach(), 32, None), requires_grad=False
    )
    table.weight.zero_point = torch.full_like(table.weight.zero_point, zero)
    tokens = torch.tensor([[3, 0], [7, 3]])
    wanted = table(tokens)
    with dequantized_by_rows():
        assert torch.equal(table(tokens), wanted)


def test_floats_of_small_weights_are_kept_if_they_may_be() -> None:
    weight = quantized_in_groups(torch.randn(3, 64), 32, None)
    wanted = weight.dequantize()
    with dequantized_by_rows():
        values = weight.dequantize()
        assert type(values) is torch.Tensor
        assert torch.equal(values, wanted)
        assert weight.dequantize() is values
    with dequantized_by_rows(keep_small=False):
        assert isinstance(weight.dequantize(), RowwiseWeight)


def test_a_process_that_evaluates_takes_little_for_weights_that_are_computed() -> None:
    plain = torch.zeros(10, 64)
    assert evaluated_bytes(plain) == 8 * 640
    assert evaluated_bytes(_half()) == 2 * 640
    assert evaluated_bytes(quantized_in_groups(plain, 32, None)) == 2 * 640
    assert evaluated_bytes(quantized_in_groups(plain[:3], 32, None)) == 8 * 192
