"""Weights that a checkpoint has quantized: which kernels compute with them, with which result."""

from __future__ import annotations

import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize

from etdeploy.export.worker.language.gguf import Blocks, unpack_q4_0, unpack_q4_1, unpack_q4_k
from etdeploy.export.worker.lowering.stored import OffsetLinear, StoredWeight, stored_notes

ROWS, INPUTS = 8, 512


def blocks_of(kind: str, seed: int = 0) -> tuple[Blocks, torch.Tensor]:
    """Blocks as they are unpacked, and what the package gguf makes of them."""
    random = torch.Generator().manual_seed(seed)
    number = GGMLQuantizationType[kind]
    if kind == "Q4_K":  # which the package cannot make: any bytes are, but scales of no number
        shape = (ROWS, INPUTS // 256, 144)
        data = torch.randint(256, shape, generator=random, dtype=torch.uint8)
        data[..., [1, 3]] &= 0x3B
        packed = data.flatten(1).numpy()
    else:
        packed = quantize(torch.randn(ROWS, INPUTS, generator=random).numpy(), number)
    unpack = {"Q4_0": unpack_q4_0, "Q4_1": unpack_q4_1, "Q4_K": unpack_q4_k}[kind]
    return unpack(packed), torch.from_numpy(dequantize(packed, number))


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q4_K"])
def test_blocks_are_what_the_package_reads(kind: str) -> None:
    blocks, expected = blocks_of(kind)
    exact = {"rtol": 0.0, "atol": 0.0} if kind == "Q4_0" else {"rtol": 1e-6, "atol": 1e-4}
    torch.testing.assert_close(blocks.weight(), expected, **exact)
    assert blocks.scales.shape == (ROWS, INPUTS // 32)


def test_negative_scales_become_positive_without_another_weight() -> None:
    blocks, expected = blocks_of("Q4_0")
    assert (blocks.scales < 0).any()
    positive = blocks.with_positive_scales()
    assert (positive.scales >= 0).all()
    assert positive.values.dtype == torch.int8
    assert (int(positive.values.min()), int(positive.values.max())) == (-8, 7)
    torch.testing.assert_close(positive.weight(), expected, rtol=0, atol=1e-6)


def stored(kind: str = "Q4_0") -> tuple[StoredWeight, torch.Tensor]:
    blocks, expected = blocks_of(kind)
    return StoredWeight(kind, 4, *blocks.with_positive_scales()), expected


def weight_of(bits: int, inputs: int, groups: int, scale: float = 1.0) -> StoredWeight:
    values = torch.zeros(2, inputs, dtype=torch.int8)
    return StoredWeight("x", bits, values, torch.full((2, groups), scale))


@pytest.mark.parametrize(
    ("weight", "grouped", "by_output"),
    [
        (StoredWeight("Q6_K", 6), False, False),
        (weight_of(4, 64, groups=2), True, False),
        (weight_of(4, 64, groups=2, scale=-1.0), False, False),
        (weight_of(4, 48, groups=3), False, False),
        (weight_of(4, 64, groups=1), True, True),
        (weight_of(8, 64, groups=2), False, False),
        (weight_of(8, 64, groups=1), False, True),
        (stored()[0], True, False),
    ],
)
def test_the_schemes_whose_kernels_compute_with_it(
    weight: StoredWeight, grouped: bool, by_output: bool
) -> None:
    assert (weight.fits("8da4w"), weight.fits("8da8w")) == (grouped, by_output)


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1"])
def test_a_layer_with_offsets_multiplies_by_the_stored_weight(kind: str) -> None:
    weight, expected = stored(kind)
    layer = torch.nn.Linear(INPUTS, ROWS)
    bias = layer.bias.detach().clone()
    weight.give_to(layer, weight.as_tensor("8da4w"))
    assert isinstance(layer, OffsetLinear)
    inputs = torch.randn(1, 3, INPUTS, generator=torch.Generator().manual_seed(1))
    own = inputs @ expected.T + bias
    # Scales are rounded to bfloat16, and activations to 8 bits.
    torch.testing.assert_close(layer(inputs), own, rtol=0, atol=0.01 * float(own.abs().max()))
    # What is added for offsets is exact: it is all of a layer whose values are zeros.
    zeros = StoredWeight("x", 4, weight.values * 0, weight.scales, weight.offsets)  # type: ignore[operator]
    zeros.give_to(layer, zeros.as_tensor("8da4w"))
    assert weight.offsets is not None
    sums = inputs.unflatten(-1, (-1, 32)).sum(-1)
    torch.testing.assert_close(layer(inputs), sums @ weight.offsets.T + bias)


def test_a_layer_without_offsets_stays_a_linear_layer() -> None:
    layer = torch.nn.Linear(64, 2)
    values = torch.ones(2, 64, dtype=torch.int8)
    weight = StoredWeight("x", 4, values, torch.full((2, 2), 0.5))
    weight.give_to(layer, weight.as_tensor("8da4w"))
    assert type(layer) is torch.nn.Linear
    torch.testing.assert_close(layer.weight.dequantize(), torch.full((2, 64), 0.5))


def test_a_moved_weight_is_the_same() -> None:
    weight = stored("Q4_1")[0]
    places: list[torch.Tensor] = []

    def move(tensor: torch.Tensor) -> torch.Tensor:
        places.append(tensor.clone())
        return places[-1]

    moved = weight.moved(move)
    for own, other in ((weight.values, moved.values), (weight.offsets, moved.offsets)):
        assert own is not None
        assert other is not own
        torch.testing.assert_close(other, own)
    assert len(places) == 3


def test_notes() -> None:
    weights = {"a": stored()[0], "b": stored()[0], "c": StoredWeight("Q6_K", 6)}
    schemes = {"a": "8da4w", "b": "8da4w", "c": "8da8w"}
    carried, again = stored_notes(weights, schemes, {"a", "b"})
    assert "2 linear layers in Q4_0" in carried
    assert "8da8w: 1 linear layer in Q6_K" in again
    assert not [*stored_notes({}, {}, set())]
