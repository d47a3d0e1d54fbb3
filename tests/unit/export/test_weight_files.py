"""Quantized weights as floats, for a model that is run eagerly."""

from __future__ import annotations

import torch

from etdeploy.export.worker.lowering.scales import quantized_in_groups
from etdeploy.export.worker.lowering.weight_files import dequantized_once


def test_a_quantized_weight_is_made_floats_once_also_in_a_nested_block() -> None:
    weight = quantized_in_groups(torch.randn(8, 64), 32, None)
    wanted = weight.dequantize()
    with dequantized_once():
        values = weight.dequantize()
        assert torch.equal(values, wanted)
        with dequantized_once():
            assert weight.dequantize() is values
        assert weight.dequantize() is values
    assert weight.dequantize() is not values


def test_weights_with_zero_points_are_made_floats_as_torchao_does() -> None:
    weight = quantized_in_groups(torch.randn(8, 64), 32, None)
    weight.zero_point = torch.full_like(weight.zero_point, 3)
    wanted = weight.dequantize()
    with dequantized_once():
        assert torch.equal(weight.dequantize(), wanted)


def test_only_the_rows_of_tokens_are_made_floats_of_a_table() -> None:
    table = torch.nn.Embedding(8, 64)
    table.weight = torch.nn.Parameter(
        quantized_in_groups(table.weight.detach(), 32, None), requires_grad=False
    )
    tokens = torch.tensor([[3, 0], [7, 3]])
    wanted = table.weight.dequantize()[tokens]
    with dequantized_once():
        assert torch.equal(table(tokens), wanted)
        table.weight.zero_point.fill_(3)
        asymmetric = table(tokens)
    assert torch.equal(table(tokens), asymmetric)
    assert not torch.equal(asymmetric, wanted)
