"""Which layers of a model are traced for all, and what happens where that does not work."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from etdeploy.export.worker.failures import WorkerError, fail
from etdeploy.export.worker.language.layer_copies import LayerCopies
from etdeploy.export.worker.language.layers import LayerTemplate, UnlikeLayersError, layer_template
from etdeploy.export.worker.language.methods import CachePrefixMethod
from etdeploy.export.worker.language.sources import generation_sources

# Of ExecuTorch, when its files are compiled for the first time.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
LAYERS = 6
CALL = (torch.tensor([[5]]), torch.tensor([0]))


def made(layers: int = LAYERS, **config: Any) -> CachePrefixMethod:
    """The method `decode` of a small Llama."""
    sizes = {"hidden_size": 16, "intermediate_size": 16, "vocab_size": 32, "head_dim": 8}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64}
    torch.manual_seed(0)
    given = LlamaConfig(**{**sizes, **heads, **config}, num_hidden_layers=layers)
    sources = generation_sources(
        LlamaForCausalLM(given).eval(),
        context=16,
        prefill_tokens=4,
        path="fast",
        attention="kernel",
    ).sources
    module: CachePrefixMethod = sources["decode"].module
    return module


def of_two_kinds() -> CachePrefixMethod:
    """The same, with another activation in some layers."""
    module = made(8)
    for number in (3, 5, 7):
        module.model.model.layers[number].mlp.act_fn = torch.nn.GELU()
    return module


def test_two_layers_behind_the_first_stand_for_all_that_are_alike() -> None:
    found = layer_template(made())
    assert found == LayerTemplate(
        "model.model.layers", (0, 1, 2), (0, 1, 2, 1, 1, 1), twins=((1, 2),), spare=((1, 2),)
    )


def test_of_each_kind_two_layers_are_traced() -> None:
    module = of_two_kinds()
    found = layer_template(module)
    assert found
    assert found.chosen == (0, 1, 2, 3, 5)
    assert found.copied == (0, 1, 2, 3, 1, 4, 1, 3)
    assert set(found.twins) == {(1, 2), (3, 4)}


def test_one_layer_of_a_kind_is_traced_where_the_next_calls_the_same() -> None:
    module = made()
    found = layer_template(module)
    assert found
    wanted = LayerTemplate("model.model.layers", (0, 1), (0, 1, 1, 1, 1, 1), ())
    assert found.without_twins(module, CALL) == wanted


def test_two_layers_of_a_kind_that_the_first_is_not_of_show_what_they_share() -> None:
    module = of_two_kinds()
    found = layer_template(module)
    assert found
    few = found.without_twins(module, CALL)
    assert (few.chosen, few.twins) == ((0, 1, 3, 5), ((2, 3),))
    assert few.copied == (0, 1, 1, 2, 1, 3, 1, 2)


class _ByNumber(torch.nn.Linear):  # type: ignore[misc]
    """Computes something else in each second layer, and leaves a tensor behind."""

    def __init__(self, layer: int) -> None:
        super().__init__(16, 16)
        self.layer_idx = layer
        self.register_buffer("last", torch.zeros(1))

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        self.last = super().forward(given)
        return self.last if self.layer_idx % 2 else self.last * 2


class _ByValue(_ByNumber):
    def forward(self, given: torch.Tensor) -> torch.Tensor:
        self.last = super().forward(given)
        return self.last if self.last.sum().item() > 0 else -self.last


@pytest.mark.parametrize("kind", [_ByNumber, _ByValue])
def test_two_layers_are_traced_where_a_call_does_not_show_that_they_are_alike(
    kind: type[_ByNumber],
) -> None:
    module = made()
    for number, layer in enumerate(module.model.model.layers):
        layer.mlp = kind(number)
    found = layer_template(module)
    assert found
    assert found.chosen == (0, 1, 2)
    assert found.without_twins(module, CALL) is found
    assert all(type(each) is torch.Tensor for each in module.buffers())


def test_a_layer_with_weights_of_its_own_kind_stands_for_itself() -> None:
    module = made()
    weight = module.model.model.layers[3].mlp.up_proj.weight
    module.model.model.layers[3].mlp.up_proj.weight = torch.nn.Parameter(weight.half())
    assert layer_template(module) == LayerTemplate(
        "model.model.layers", (0, 1, 2, 3), (0, 1, 2, 3, 1, 1), twins=((1, 2),), spare=((1, 2),)
    )


@pytest.mark.parametrize("layers", [1, 3])
def test_nothing_is_gained_with_few_layers(layers: int) -> None:
    assert layer_template(made(layers)) is None
    assert layer_template(torch.nn.Linear(2, 2)) is None


def _scaling(layers: Any) -> None:
    layers[4].self_attn.scaling = 0.5


def _activation(layers: Any) -> None:
    layers[4].mlp.act_fn = torch.nn.GELU()


def _shape(layers: Any) -> None:
    layers[4].mlp.up_proj = torch.nn.Linear(16, 16, bias=True)


def _shared(layers: Any) -> None:
    layers[4].mlp.up_proj.weight = layers[1].mlp.up_proj.weight


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (_scaling, r"layer 4 differs from layer 1 in self_attn\.scaling \(0\.5, not 0\.35"),
        (_activation, r"layer 4 differs from layer 1 in mlp\.act_fn \(GELU, not SiLU"),
        (_shape, r"layer 4 differs from layer 1 in mlp\.up_proj\.bias"),
        (_shared, "its layers share weights"),
    ],
)
def test_a_layer_that_differs_is_named(change: Any, why: str) -> None:
    module = made()
    change(module.model.model.layers)
    with pytest.raises(UnlikeLayersError, match=why):
        layer_template(module)
    [note] = LayerCopies.of({"decode": module}, {"decode": CALL}).notes
    assert note.startswith("All layers were traced one by one, which takes longer: ")


def test_a_reduced_model_gives_what_its_layers_give_and_is_whole_afterwards() -> None:
    module, few = made(), made(3)
    layers, own = module.model.model.layers, few.model.model.layers
    for number in range(3):
        own[number].load_state_dict(layers[number].state_dict())
    for name in ("embed_tokens", "norm"):
        getattr(few.model.model, name).load_state_dict(
            getattr(module.model.model, name).state_dict()
        )
    few.model.lm_head.load_state_dict(module.model.lm_head.state_dict())
    cache, names = module.cache, set(module.state_dict())
    template = layer_template(module)
    assert template
    with torch.no_grad(), template.reduced(module):
        assert torch.equal(module(*CALL), few(*CALL))
        assert set(module.state_dict()) == set(few.state_dict())
    assert module.model.model.layers is layers
    assert module.model.config.num_hidden_layers == LAYERS
    assert [layer.self_attn.layer_idx for layer in layers] == list(range(LAYERS))
    assert module.cache is cache
    assert set(module.state_dict()) == names


class Tracing:
    """Counts how methods are traced; gives whether all layers were there."""

    def __init__(self, module: CachePrefixMethod, *, fails: bool = False) -> None:
        self.module, self.fails, self.found = module, fails, list[int]()

    def __call__(self, around: Any) -> dict[str, Any]:
        inside: AbstractContextManager[None] = around("decode")
        with inside:
            self.found.append(len(self.module.model.model.layers))
            if self.fails and self.found[-1] < LAYERS:
                raise fail("trace", "no such operator")
        return {"decode": self.found[-1]}


def test_all_layers_are_traced_where_a_few_cannot_be() -> None:
    module = made()
    tracing, copies = (
        Tracing(module, fails=True),
        LayerCopies.of({"decode": module}, {"decode": CALL}),
    )
    traced: Any = copies.traced(tracing)
    assert traced == {"decode": LAYERS}
    assert tracing.found == [2, LAYERS]
    assert copies.misfit == "a few of them cannot be traced (no such operator)"


def test_all_layers_are_lowered_where_their_graphs_turn_out_to_differ() -> None:
    module = made()
    tracing, copies = Tracing(module), LayerCopies.of({"decode": module}, {"decode": CALL})
    traced: Any = copies.traced(tracing)
    assert traced == {"decode": 2}

    def lower(methods: Any) -> Any:
        if methods["decode"] < LAYERS:
            copies.give_up("the graphs of layers 1 and 2 differ in aten.add.Tensor")
            raise fail("lowering", "lowering failed")
        return "lowered"

    lowered: Any = copies.lowered(traced, tracing, lower)
    assert lowered == ("lowered", {"decode": LAYERS})
    assert tracing.found == [2, LAYERS]
    assert "differ in aten.add.Tensor." in copies.notes[0]


def test_a_failure_that_is_not_about_copies_is_reported() -> None:
    module = made()
    tracing, copies = Tracing(module), LayerCopies.of({"decode": module}, {"decode": CALL})

    def lower(_: Any) -> Any:
        raise fail("lowering", "lowering failed")

    with pytest.raises(WorkerError, match="lowering failed"):
        copies.lowered(copies.traced(tracing), tracing, lower)
    assert copies.notes == ()
