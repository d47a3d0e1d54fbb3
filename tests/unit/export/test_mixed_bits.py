"""Which layers get 8 bits, so that weights have so many bits on average."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from etdeploy.export.worker.language.activations import read_for_gradients
from etdeploy.export.worker.language.texts import TokenizedText
from etdeploy.export.worker.lowering.mixed_bits import (
    RoundingCandidate,
    by_role,
    candidate,
    choose,
    divergences,
)
from etdeploy.export.worker.lowering.scales import Activations, quantized_in_groups

_VOCABULARY, _WIDTH = 32, 64


def of(name: str, weights: int, divergence: float) -> RoundingCandidate:
    return RoundingCandidate(name, weights, divergence, bits=4.5, more_bits=8.5)


LAYERS = (of("a.v", 100, 0.3), of("a.k", 100, 0.1), of("b.v", 100, 0.2), of("b.down", 700, 0.5))


@pytest.mark.parametrize(
    ("target_bits", "finer", "mean_bits"),
    [
        (4.5, set(), 4.5),
        (4.89, set(), 4.5),
        (4.9, {"a.v"}, 4.9),
        (5.3, {"a.v", "b.v"}, 5.3),
        (6.0, {"a.v", "b.v", "a.k"}, 5.7),
        (8.5, {"a.v", "b.v", "a.k", "b.down"}, 8.5),
    ],
)
def test_what_loses_most_for_its_size_gets_8_bits(
    target_bits: float, finer: set[str], mean_bits: float
) -> None:
    found = choose(LAYERS, target_bits)
    assert found.finer == finer
    assert math.isclose(found.mean_bits, mean_bits)


def test_what_has_no_room_leaves_it_to_the_others() -> None:
    large = of("large", 700, 9.0)
    assert choose([large, *LAYERS[:3]], 5.0).finer == {"a.v"}


def test_a_layer_that_loses_nothing_stays() -> None:
    assert choose([of("a", 10, 0.0), of("b", 10, 0.1)], 8.5).finer == {"b"}


def test_the_size_of_a_layer_has_its_scales() -> None:
    found = candidate("a", torch.nn.Linear(64, 16), 32, 0.5)
    assert (found.weights, found.bits, found.more_bits) == (1024, 4.5, 8.5)
    assert found.added_bits == 4096


def test_what_was_chosen_by_the_last_names() -> None:
    layers = [of(f"layers.{i}.{name}", 1, 1.0) for i in range(3) for name in ("q", "v", "o")]
    assert by_role({"layers.0.v", "layers.2.v", "layers.1.o"}, layers) == "v (2 of 3), o (1 of 3)"


class Toy(torch.nn.Module):  # type: ignore[misc]
    """A language model of two layers, and one that it does not call."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = torch.nn.Embedding(_VOCABULARY, _WIDTH)
        self.inner = torch.nn.Linear(_WIDTH, _WIDTH, bias=False)
        self.outer = torch.nn.Linear(_WIDTH, _VOCABULARY, bias=False)
        self.other = torch.nn.Linear(_WIDTH, _WIDTH, bias=False)
        self.config = SimpleNamespace(
            model_type="toy", sub_configs={}, _attn_implementation="eager"
        )

    def get_input_embeddings(self) -> torch.nn.Embedding:
        return self.table

    def set_attn_implementation(self, name: Any) -> None:
        pass

    def forward(self, input_ids: torch.Tensor, use_cache: bool) -> SimpleNamespace:
        assert not use_cache
        given = self.table(input_ids)
        return SimpleNamespace(logits=self.outer(given + self.inner(given)))


def divergence(model: Toy, layer: torch.nn.Linear, ids: torch.Tensor) -> float:
    """What 4 bits in one layer cost, measured."""
    weight = layer.weight
    with torch.no_grad():
        before = model(ids, False).logits[0].log_softmax(-1)
        rounded = quantized_in_groups(weight, 32, None).dequantize()
        layer.weight = torch.nn.Parameter(rounded, requires_grad=False)
        after = model(ids, False).logits[0].log_softmax(-1)
    layer.weight = weight
    return float((before.exp() * (before - after)).sum(-1).mean())


@pytest.mark.parametrize("trained", [False, True], ids=["frozen", "with gradients"])
def test_gradients_tell_what_4_bits_in_a_layer_cost(trained: bool) -> None:
    model = Toy().requires_grad_(trained)
    random = torch.Generator().manual_seed(1)
    parts = tuple(
        tuple(torch.randint(_VOCABULARY, (256,), generator=random).tolist()) for _ in range(2)
    )
    text = TokenizedText("text.txt", "", parts, whole=True)
    layers = {model.inner: 32, model.outer: 32, model.other: 32}
    read = Activations(
        gradients=lambda wanted, seen: read_for_gradients(model, "eager", text, wanted, seen)
    )
    found = divergences(layers, read)
    assert found.keys() == {model.inner, model.outer}
    for layer, estimated in found.items():
        measured = divergence(model, layer, torch.tensor(parts[:1]))
        assert estimated == pytest.approx(measured, rel=0.35)
    assert all(p.grad is None for p in model.parameters())
    assert not model.inner._forward_hooks
    assert not model.table._forward_hooks


def test_the_same_text_gives_the_same_estimate() -> None:
    model = Toy()
    text = TokenizedText("text.txt", "", ((1, 2, 3, 4),), whole=True)
    gradients: list[torch.Tensor] = []
    for _ in range(2):
        tokens = read_for_gradients(
            model, "eager", text, [model.inner], lambda *seen: gradients.append(seen[2])
        )
        assert tokens == 4
    assert torch.equal(*gradients)
    assert gradients[0].shape == (4, _WIDTH)
