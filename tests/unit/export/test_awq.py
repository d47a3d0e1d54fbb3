"""AWQ: the inputs of 4-bit layers are scaled, and the model computes the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
from torch import nn

from etdeploy.export.worker.lowering import awq
from etdeploy.export.worker.lowering.awq import Place, scale_inputs
from etdeploy.export.worker.lowering.scales import Activations, quantized_in_groups

SIZE, WIDTH, GROUP = 64, 96, 32


class OffsetNorm(nn.Module):  # type: ignore[misc]
    """As Gemma's, which multiplies by 1 + weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(SIZE))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.rms_norm(x, (SIZE,)) * (1 + self.weight)


class Gated(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(SIZE, WIDTH), nn.Linear(SIZE, WIDTH)
        self.down_proj = nn.Linear(WIDTH, SIZE)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Block(nn.Module):  # type: ignore[misc]
    """Two layers read the first norm; with `leaks`, a sum does, too."""

    def __init__(self, norm: Callable[[], nn.Module], *, leaks: bool) -> None:
        super().__init__()
        self.first, self.second = norm(), norm()
        self.q, self.k = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE)
        self.mlp, self.leaks = Gated(), leaks

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        read = self.first(x)
        x = x + self.q(read).tanh() + self.k(read).tanh() + (0.1 * read if self.leaks else 0)
        out: torch.Tensor = x + self.mlp(self.second(x)).tanh()
        return out


@dataclass
class Case:
    """A model of two blocks, and what its layers are given on a text."""

    model: nn.Module
    text: torch.Tensor
    squares: dict[int, torch.Tensor] = field(default_factory=dict)

    def logits(self) -> torch.Tensor:
        with torch.no_grad():
            out: torch.Tensor = self.model(self.text)
            return out

    @property
    def linears(self) -> dict[str, nn.Linear]:
        return {n: m for n, m in self.model.named_modules() if isinstance(m, nn.Linear)}

    def scale(
        self, fixed: tuple[str, ...] = (), deferred: awq.DeferredFactors | None = None
    ) -> tuple[Activations, str]:
        given = Activations(self.squares, "9 tokens of a text", logits=self.logits)
        groups = {id(layer): GROUP for layer in self.linears.values()}
        kept = [self.linears[n] for n in fixed]
        return scale_inputs(self.model, groups, kept, given, deferred or {})


def case(norm: Callable[[], nn.Module], *, leaks: bool = False) -> Case:
    """Inputs of some columns are much larger than those of others."""
    torch.manual_seed(0)
    model = nn.Sequential(Block(norm, leaks=leaks), Block(norm, leaks=leaks))
    for name, weight in model.named_parameters():
        if "first.weight" in name or "second.weight" in name:
            weight.data += (1.5 * torch.randn(SIZE)).exp()
    found = Case(model, torch.randn(9, SIZE))
    hooks = [
        layer.register_forward_pre_hook(
            lambda layer, inputs: found.squares.update({id(layer): inputs[0].square().mean(0)})
        )
        for layer in found.linears.values()
    ]
    found.logits()
    for hook in hooks:
        hook.remove()
    return found


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every place is scaled, by the largest power."""
    monkeypatch.setattr(awq, "rounding_error", lambda *args: -float(args[-1].max()))


NORMS = {
    "rms": lambda: nn.RMSNorm(SIZE),
    "with a bias": lambda: nn.LayerNorm(SIZE),
    "offset": OffsetNorm,
}


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("kind", NORMS)
def test_the_model_computes_the_same_with_other_weights(kind: str) -> None:
    made = case(NORMS[kind])
    before, weights = made.logits(), {n: w.clone() for n, w in made.model.state_dict().items()}
    read, note = made.scale()
    assert torch.allclose(made.logits(), before, 1e-4, 1e-3)
    changed = {n for n, w in made.model.state_dict().items() if not torch.equal(w, weights[n])}
    biases = {f"{i}.{name}.bias" for i in (0, 1) for name in ("q", "k", "mlp.gate_proj")}
    of_norms = {n for n in weights if n.endswith(("first.bias", "second.bias"))}
    assert changed >= {*weights} - biases - of_norms - {
        "0.mlp.down_proj.bias",
        "1.mlp.down_proj.bias",
    }
    assert "linear layers" in note
    assert "9 tokens of a text" in note
    # The mean squares are those of the scaled inputs.
    with torch.no_grad():
        squares = made.model[0].first(made.text).square().mean(0)
    assert torch.allclose(read.mean_squares[id(made.linears["0.q"])], squares, 1e-4, 1e-4)


def test_the_scales_with_the_least_error_are_chosen() -> None:
    torch.manual_seed(1)
    weight, sizes = torch.randn(48, SIZE), (2 * torch.randn(SIZE)).exp()
    inputs = torch.randn(512, SIZE) * sizes
    place = Place("norm", nn.RMSNorm(SIZE), (nn.Linear(SIZE, 48),))
    place.readers[0].weight.data = weight
    squares = inputs.square().mean(0)
    scales = awq._best(place, {id(place.readers[0]): GROUP}, squares)
    assert scales is not None

    def error(scales: torch.Tensor) -> float:
        rounded = quantized_in_groups(weight * scales, GROUP, squares / scales.square())
        return float((inputs @ (rounded.dequantize() / scales - weight).T).square().sum())

    assert error(scales) < 0.9 * error(torch.ones(SIZE))


@pytest.mark.usefixtures("always")
def test_what_something_else_reads_stays() -> None:
    made = case(NORMS["rms"], leaks=True)
    before = {n: w.clone() for n, w in made.model.state_dict().items()}
    _, note = made.scale()
    after = made.model.state_dict()
    assert torch.equal(before["0.first.weight"], after["0.first.weight"])
    assert torch.equal(before["1.q.weight"], after["1.q.weight"])
    assert not torch.equal(before["0.second.weight"], after["0.second.weight"])
    assert "Something else also reads what first gives" in note


@pytest.mark.usefixtures("always")
def test_layers_of_the_checkpoint_stay() -> None:
    made = case(NORMS["rms"])
    before = {n: w.clone() for n, w in made.model.state_dict().items()}
    made.scale(fixed=("0.k", "1.mlp.up_proj"))
    after = made.model.state_dict()
    for name in ("0.first.weight", "0.q.weight", "1.second.weight", "1.mlp.down_proj.weight"):
        assert torch.equal(before[name], after[name])
    assert not torch.equal(before["1.first.weight"], after["1.first.weight"])


@pytest.mark.usefixtures("always")
def test_tied_weights_stay() -> None:
    made = case(NORMS["rms"])
    made.model[1].q.weight = made.model[0].q.weight
    before = made.model[0].q.weight.clone()
    made.scale()
    assert torch.equal(made.model[0].q.weight, before)


@pytest.mark.usefixtures("always")
def test_factors_that_are_applied_later_give_the_same_weights() -> None:
    now, then = case(NORMS["rms"]), case(NORMS["rms"])
    up = then.linears["0.mlp.up_proj"]
    before = up.weight.clone()
    now.scale()
    deferred: dict[int, list[torch.Tensor]] = {id(up): []}
    then.scale(deferred=deferred)
    assert torch.equal(up.weight, before)
    assert not torch.equal(now.linears["0.mlp.up_proj"].weight, before)
    # Of its columns, as a reader of the norm, and of its rows, as what down_proj reads.
    assert [tuple(factor.shape) for factor in deferred[id(up)]] == [(1, SIZE), (WIDTH, 1)]
    wanted = quantized_in_groups(now.linears["0.mlp.up_proj"].weight, GROUP, None)
    found = quantized_in_groups(up.weight, GROUP, None, deferred[id(up)])
    assert torch.equal(found.qdata, wanted.qdata)
    assert torch.equal(found.scale, wanted.scale)
    for name, layer in then.linears.items():
        assert layer is up or torch.equal(layer.weight, now.linears[name].weight)
