"""Keys and values as inputs and outputs: masks, places, and what QNN makes of such a graph."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AttentionInterface

from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.backends.qnn_placement import (
    _mark_converted,
    _rename_converted,
    join_views,
    take_parts,
    take_stored_weights,
)
from etdeploy.export.worker.backends.qnn_quantization import _block_scales
from etdeploy.export.worker.failures import WorkerError
from etdeploy.export.worker.language.model import _ranges_note, _require_ranges
from etdeploy.export.worker.language.sources import generation_sources
from etdeploy.export.worker.language.static_cache import (
    MASKED,
    STATIC,
    Packed,
    Pointwise,
    RotaryTable,
    StaticCalls,
    _rms_norm,
    calibrated_mask,
    register,
    static_attention,
    use_native_layers,
    use_rotary_tables,
    with_all_logits,
)
from etdeploy.export.worker.language.texts import TokenizedText, calibration_parts
from etdeploy.export.worker.lowering.scales import Activations
from etdeploy.program.generation import StaticCache
from tests.support.export import spec_of
from tests.support.language_models import LLAMA, spread_model

# Of torch, about itself.
pytestmark = pytest.mark.filterwarnings("ignore:.isinstance:FutureWarning")

FACTS = StaticCache(places=5, windows=(0, 2), masked=-9.0, layers=((1, 2),))


def test_a_call_has_padding_before_its_tokens() -> None:
    tokens, positions, whole, window, *caches = StaticCalls(FACTS).inputs([7, 8], 3, 3)
    assert tokens.tolist() == [[7, 7, 8]]
    assert positions.tolist() == [[2, 3, 4]]
    # Five places, of which three are filled, and the call's three.
    seen = [[int(value == 0) for value in row] for row in whole[0, 0].tolist()]
    assert seen == [
        [0, 0, 0, 0, 0, 1, 0, 0],
        [1, 1, 1, 0, 0, 0, 1, 0],
        [1, 1, 1, 0, 0, 0, 1, 1],
    ]
    near = [[int(value == 0) for value in row] for row in window[0, 0].tolist()]
    assert near == [
        [0, 0, 0, 0, 0, 1, 0, 0],
        [0, 0, 1, 0, 0, 0, 1, 0],
        [0, 0, 0, 0, 0, 0, 1, 1],
    ]
    assert set(whole.unique().tolist()) == {0.0, -9.0}
    assert [tuple(each.shape) for each in caches] == [(1, 1, 2, 5), (1, 1, 5, 2)]


def test_new_keys_and_values_go_to_their_places() -> None:
    calls = StaticCalls(FACTS)
    keys = torch.arange(6.0).reshape(1, 1, 2, 3)
    values = 10 + torch.arange(6.0).reshape(1, 1, 3, 2)
    calls.store(4, 2, (keys, values))  # of two tokens the second has the last position: no place
    assert calls.caches[0][0, 0].tolist() == [[0, 0, 0, 0, 1], [0, 0, 0, 0, 4]]
    assert calls.caches[1][0, 0].tolist() == [[0, 0]] * 4 + [[12, 13]]


@pytest.mark.parametrize("bias", [True, False])
def test_a_convolution_computes_a_linear_layer(bias: bool) -> None:
    torch.manual_seed(0)
    linear = torch.nn.Linear(6, 8, bias=bias)
    x = torch.randn(1, 3, 6)
    with torch.no_grad():
        for each in (Pointwise(linear.weight, linear.bias, None), Packed(linear, (4, 2, 2), None)):
            torch.testing.assert_close(each(x), linear(x))
        single = Pointwise(linear.weight, linear.bias, None)
        torch.testing.assert_close(single(x[0]), linear(x[0]))


class GemmaRMSNorm(torch.nn.Module):  # type: ignore[misc]
    """A norm whose factors are 1 + weight."""

    def __init__(self, added: float = 1.0) -> None:
        super().__init__()
        self.weight, self.eps, self.added = torch.nn.Parameter(torch.randn(8)), 1e-5, added

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        return normed * (self.added + self.weight)


class OtherRMSNorm(GemmaRMSNorm):
    """One that is no norm of squares alone."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + 0.5


def test_a_norm_becomes_torchs_where_it_is_the_same() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 8)
    for added in (0.0, 1.0):
        norm = GemmaRMSNorm(added)
        found = _rms_norm(norm)
        assert isinstance(found, torch.nn.RMSNorm)
        torch.testing.assert_close(found(x), norm(x), rtol=1e-4, atol=1e-5)
    assert _rms_norm(OtherRMSNorm()) is None
    assert _rms_norm(torch.nn.LayerNorm(8)) is None


@pytest.mark.parametrize(
    ("kind", "looked_up"),
    [
        ("default", True),
        ({"sliding_attention": "default", "full_attention": "yarn"}, True),
        # Of which angles depend on the length of the text.
        ("dynamic", False),
        ({"sliding_attention": "default", "full_attention": "longrope"}, False),
    ],
)
def test_only_angles_that_depend_on_the_position_are_looked_up(kind: Any, looked_up: bool) -> None:
    model, rotary = torch.nn.Module(), torch.nn.Module()
    rotary.rope_type = kind
    model.add_module("rotary_emb", rotary)
    use_rotary_tables(model, 6)
    assert isinstance(model.rotary_emb, RotaryTable) is looked_up


def test_a_rotary_embedding_is_looked_up() -> None:
    class Rotary(torch.nn.Module):  # type: ignore[misc]
        def forward(
            self, _: torch.Tensor, position_ids: torch.Tensor, kind: str = "a"
        ) -> tuple[torch.Tensor, torch.Tensor]:
            angles = position_ids.float().unsqueeze(-1) * (1 if kind == "a" else 2)
            return angles.cos(), angles.sin()

    table, x, positions = RotaryTable(Rotary(), 6), torch.zeros(1), torch.tensor([[5, 0, 3]])
    for kind in ((), ("b",), ()):
        given = (x, positions, *kind)
        for found, wanted in zip(table(*given), Rotary()(*given), strict=True):
            torch.testing.assert_close(found, wanted)
    assert len(list(table.buffers())) == 4


def test_the_logits_of_each_token_are_those_before_the_last_is_taken() -> None:
    class Last(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x[:, -1:, :] * 2)[:, -1]

    x = torch.randn(1, 3, 4)
    graph = torch.export.export(Last(), (x,)).module()
    torch.testing.assert_close(with_all_logits(graph)(x), x * 2)
    torch.testing.assert_close(graph(x), x[:, -1] * 2)


def test_scales_of_blocks_are_sixteenths_of_the_largest() -> None:
    torch.manual_seed(0)
    weight = torch.randn(4, 64, 1, 1)
    weight[:, 32:] *= 0.01  # far below a sixteenth: ExecuTorch's exact scale would not be kept
    scales = _block_scales(weight, 32, None)
    assert scales.shape == (4, 2, 1)
    # As ExecuTorch stores them: others would be rounded to these after the values.
    steps = scales[..., 0] / (scales.amax(1) / 16)
    torch.testing.assert_close(steps, steps.round())
    assert steps.min() >= 1
    assert steps[:, 0].tolist() == [16] * 4

    def error(scale: torch.Tensor) -> float:
        blocks = weight.reshape(4, 2, 32)
        return float(((blocks / scale).round().clamp(-7, 7) * scale - blocks).square().sum())

    clipping_nothing = weight.abs().amax((1, 2, 3)) / 7
    assert error(scales) < error(clipping_nothing.reshape(4, 1, 1))
    # What counts is what the inputs make of it.
    squares = torch.cat([torch.full((32,), 1e-6), torch.ones(32)])
    assert _block_scales(weight, 32, squares).shape == scales.shape


@pytest.mark.parametrize(
    ("scheme", "static", "apart", "fact"),
    [
        ("16a8w", None, {}, "a reason of the path"),
        ("16a8w", FACTS, {"french": None}, "adapter"),
        ("16a8w", FACTS, {}, None),
        ("fp16", None, {"french": None}, None),
    ],
)
def test_ranges_are_those_of_a_static_cache_without_adapters(
    scheme: str, static: StaticCache | None, apart: dict[str, Any], fact: str | None
) -> None:
    made: Any = SimpleNamespace(
        static_cache=static, path="fast", path_reason="a reason of the path."
    )
    spec = ExportSpec(backend="qnn", quantization=scheme)
    loaded: Any = SimpleNamespace(apart=apart)
    if fact is None:
        _require_ranges(spec, loaded, made)
        return
    with pytest.raises(WorkerError) as caught:
        _require_ranges(spec, loaded, made)
    failure = caught.value.failure
    assert fact in failure.message
    assert scheme in failure.message
    assert "--set export.quantization=fp16" in str(failure.remedy)
    assert ("--set model.merge=true" in str(failure.remedy)) == bool(static)


# ExecuTorch's name of what a user converts its operand to.
_CONVERSIONS = "requantize"


@pytest.fixture(scope="module")
def edge() -> Any:
    """ExecuTorch's operators."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from executorch.backends.qualcomm.utils.constants import QCOM_REQUANTIZE
        from executorch.exir.dialects._ops import ops
    assert QCOM_REQUANTIZE == _CONVERSIONS
    return ops.edge.aten


def _graph() -> tuple[torch.fx.Graph, torch.fx.Node]:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.zeros(1, 4, 6)
    return graph, x


def _call(graph: torch.fx.Graph, operator: object, *arguments: object) -> torch.fx.Node:
    node = graph.call_function(operator, arguments)
    values = torch.fx.map_arg(arguments, lambda each: each.meta["val"])
    node.meta["val"] = operator(*values)  # type: ignore[operator]
    return node


def test_conversions_follow_a_user_that_gets_another_name(edge: Any) -> None:
    graph, x = _graph()
    view = _call(graph, edge.view_copy.default, x, [4, 6])
    other = _call(graph, edge.view_copy.default, x, [6, 4])
    graph.output((view, other))
    x.meta[_CONVERSIONS] = {view.name: "8 bits"}
    _mark_converted(graph)
    view._rename("renamed")
    _rename_converted(graph)
    assert x.meta[_CONVERSIONS] == {view.name: "8 bits"}
    view._rename("again")
    _rename_converted(graph)
    assert x.meta[_CONVERSIONS] == {view.name: "8 bits"}


def test_views_of_views_and_slices_of_joined_values_go(edge: Any) -> None:
    graph, x = _graph()
    first = _call(graph, edge.view_copy.default, x, [4, 6])
    second = _call(graph, edge.view_copy.default, first, [2, 12])
    first.meta[_CONVERSIONS] = {second.name: "8 bits"}
    joined = _call(graph, edge.cat.default, [x, x], 2)
    part = _call(graph, edge.slice_copy.Tensor, joined, 2, 6, 12)
    across = _call(graph, edge.slice_copy.Tensor, joined, 2, 3, 9)
    graph.output((second, part, across))
    take_parts(graph)
    join_views(graph)
    assert second.args[0] is x
    assert x.meta[_CONVERSIONS] == {second.name: "8 bits"}
    assert list(graph.nodes)[-1].args[0] == (second, x, across)


@pytest.mark.parametrize(("shape", "stored"), [((4, 1, 3), True), ((1, 4, 3), False)])
def test_convolutions_take_their_stored_weights(shape: tuple[int, ...], stored: bool) -> None:
    """As in LFM2, which drops a dimension of them and adds it again."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from executorch.exir.dialects._ops import ops
    aten, graph = ops.edge.aten, torch.fx.Graph()

    def noted(node: torch.fx.Node, *sizes: int) -> torch.fx.Node:
        node.meta["val"] = torch.empty(sizes)
        return node

    weight, x = noted(graph.placeholder("weight"), 4, 1, 3), noted(graph.placeholder("x"), 1, 4, 8)
    dropped = noted(graph.call_function(aten.squeeze_copy.dims, (weight, [1])), 4, 3)
    dim = shape.index(1)
    added = noted(graph.call_function(aten.unsqueeze_copy.default, (dropped, dim)), *shape)
    called = graph.call_function(aten.convolution.default, (x, added, None))
    graph.output(called)
    take_stored_weights(graph)
    assert called.args[1] is (weight if stored else added)
    assert (dropped in graph.nodes) is not stored


@pytest.mark.nightly
def test_experts_are_joined_in_the_static_path() -> None:
    model = spread_model("Mixtral", {**LLAMA, "num_local_experts": 4}, std=0.15)
    made = generation_sources(model, context=16, prefill_tokens=4, path="static", mode="kv")
    assert made.notes == ("Each token computes all 4 experts of a layer, 2 of which its router "
                          "chooses.",)  # fmt: skip
    source, cache = made.sources["decode"], made.static_cache
    assert cache is not None
    with torch.no_grad():
        before = source.module(*source.inputs.args)
        use_native_layers(model, cache, Activations())
        after = source.module(*source.inputs.args)
    assert all(type(layer) is not torch.nn.Linear for layer in model.modules())
    for own, other in zip(after, before, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-5)


def test_a_text_that_is_too_short_to_set_ranges_is_told() -> None:
    assert _ranges_note("a.txt", 256) == "256 tokens of a.txt set the ranges of activations."
    short = _ranges_note("a.txt", 30)
    assert short.endswith("ranges of activations: too few for accuracy. Name a file with some "
                          "hundred words.")  # fmt: skip
    assert "30 tokens at random" in _ranges_note(None, 30)


def _calibrated_by(calibration: Any, words: int = 0, bos_id: int | None = None) -> TokenizedText:
    """What is read with a tokenizer that has a token for each word: its length."""
    spec = spec_of(
        {
            "model": {"hf": "org/model"},
            "export": {
                "quantization": "8da4w",
                "calibration": calibration,
                "generation": {"context": 16, "prefill_tokens": 4},
            },
        }
    )
    if spec.calibration_text:
        Path(spec.calibration_text).write_text(" ".join("a" * (1 + i % 9) for i in range(words)))
    tokenizer = SimpleNamespace(
        loaded=lambda text: {"input_ids": [len(word) for word in text.split()]}, bos_id=bos_id
    )
    loaded: Any = SimpleNamespace(tokenizer=tokenizer, vocabulary=99)
    found = calibration_parts(spec, loaded)
    assert found
    return found


def test_sections_of_a_text_calibrate(tmp_path: Path) -> None:
    text = str(tmp_path / "text.txt")
    assert list(map(len, _calibrated_by(text, 40).parts)) == [16, 16, 8]
    found = _calibrated_by({"text": text, "prompts": 2}, 40)
    assert (found.file, found.parts) == ("text.txt", ((1, 2, 3, 4), (5, 6, 7, 8)))
    # Each begins as a text does.
    found = _calibrated_by({"text": text, "prompts": 2}, 40, bos_id=50)
    assert found.parts == ((50, 1, 2, 3), (50, 4, 5, 6))
    found = _calibrated_by({"text": text, "prompts": 5}, 11)
    assert list(map(len, found.parts)) == [4, 4, 3]
    assert found.file == (
        "text.txt (3 sections of up to 4 tokens, not the 5 of export.calibration.prompts)"
    )


def test_prompts_calibrate_after_a_text(tmp_path: Path) -> None:
    found = _calibrated_by({"prompts": ["a bb", "ccc"]})
    assert (found.file, found.parts) == ("2 prompts", ((1, 2), (3,)))
    text = str(tmp_path / "text.txt")
    both = _calibrated_by({"text": text, "prompts": ["a bb"]}, 3)
    assert (both.file, both.parts) == ("text.txt and 1 prompt", ((1, 2, 3), (1, 2)))


@pytest.mark.parametrize(("prompt", "tokens"), [("a " * 17, "17 tokens"), (" ", "0 tokens")])
def test_a_prompt_that_does_not_fit_is_refused(prompt: str, tokens: str) -> None:
    with pytest.raises(WorkerError) as raised:
        _calibrated_by({"prompts": ["a", prompt]})
    failure = raised.value.failure
    assert (failure.kind, failure.file) == ("calibration", "export.calibration")
    for fact in ("prompt 1 ", tokens, "export.generation.context", "1 to 16"):
        assert fact in failure.message


def test_a_mask_is_no_larger_than_scores_need() -> None:
    """Scores of 3 that are hidden, beside -2 that is seen: 5, and 256 steps for 4 positions."""
    register()
    attention = torch.nn.Module()

    def inputs(scores: float) -> Iterator[tuple[torch.Tensor, ...]]:
        yield ()
        query, value = torch.ones(1, 1, 1, 1), torch.ones(1, 1, 2, 1)
        keys = torch.full((1, 1, 1, 2), scores)
        seen = torch.full_like(keys, -2.0)
        mask = torch.tensor([[[[MASKED, MASKED, 0.0, 0.0]]]])
        AttentionInterface()[STATIC](
            attention, query, (keys, seen), (value, value), mask, scaling=1.0
        )

    assert calibrated_mask(inputs(3.0)) == pytest.approx(-5 - math.log(256 * 4))
    assert calibrated_mask(inputs(1000.0)) == MASKED
    assert AttentionInterface()[STATIC] is static_attention
