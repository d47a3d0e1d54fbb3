"""What a plan says of a language model's attention."""

from __future__ import annotations

from typing import Any

import pytest

from etdeploy.plan.language import language_choices
from etdeploy.program.generation import Generation, GenerationMethod
from tests.support.runtime_values import make_recipe

_GENERATION = Generation(
    methods=(
        GenerationMethod(
            name="prefill", role="prefill", max_tokens=128, dynamic=True, capacity=2048
        ),
        GenerationMethod(
            name="decode_128", role="decode", max_tokens=1, dynamic=False, capacity=128
        ),
    ),
    vocabulary=100,
    context=2048,
    model="m",
    path="plain",
    path_reason="The model does not fit the fast path: it has a bias.",
)


def test_before_the_export_the_path_is_open_or_the_recipes() -> None:
    path, attention = language_choices(make_recipe(model={"hf": "m"}), None)
    assert (path.name, path.value, path.by_hand) == ("path", "fast or plain", False)
    assert (attention.value, attention.by_hand) == ("etdeploy's kernel", False)
    assert "llama::custom_sdpa" in attention.reason
    assert "export.generation.attention=stock" in attention.reason
    recipe = make_recipe(model={"hf": "m"}, export={"generation": {"path": "plain"}})
    path, _ = language_choices(recipe, None)
    assert (path.value, path.by_hand) == ("plain", True)
    assert "export.generation.path" in path.reason


def _attention(**export: object) -> tuple[str, str, bool]:
    recipe = make_recipe(model={"hf": "m"}, export=export)
    _, attention = language_choices(recipe, None)
    return str(attention.value), attention.reason.partition(";")[0], attention.by_hand


@pytest.mark.parametrize(
    ("export", "expected", "fact", "asked"),
    [
        ({"generation": {"attention": "stock"}}, "stock operators", "generation.attention", True),
        (
            {"generation": {"attention": "kernel", "context": 64}},
            "etdeploy's kernel", "generation.attention", True,
        ),
        ({"generation": {"context": 256}}, "stock operators", "512 positions", False),
        ({"backend": "openvino"}, "stock operators", "openvino", False),
        ({"generation": {"path": "plain"}}, "stock operators", "", False),
    ],
)  # fmt: skip
def test_the_attention_is_a_kernel_where_that_is_possible_and_faster(
    export: dict[str, Any], expected: str, fact: str, asked: bool
) -> None:
    value, reason, by_hand = _attention(**export)
    assert (value, fact in reason, by_hand) == (expected, True, asked)


@pytest.mark.parametrize("cache", ["float16", "int8"])
def test_a_cache_that_only_the_kernel_reads_has_it_and_is_named(cache: str) -> None:
    recipe = make_recipe(model={"hf": "m"}, export={"generation": {"cache": cache, "context": 128}})
    _, attention, named = language_choices(recipe, None)
    assert (attention.value, cache in attention.reason) == ("etdeploy's kernel", True)
    assert (named.name, named.value, named.by_hand) == ("cache", cache, True)
    exported = _GENERATION.model_copy(update={"attention": "kernel", "cache": cache})
    other = make_recipe(model={"hf": "m"})
    assert [c.value for c in language_choices(other, exported) if c.name == "cache"] == [cache]


@pytest.mark.parametrize(
    ("sinks", "sees"), [(4, "last 64 positions and the first 4"), (0, "last 64 positions of")]
)
def test_a_window_is_named_with_its_sinks(sinks: int, sees: str) -> None:
    asked = {"window": 64, "sinks": sinks}
    recipe = make_recipe(model={"hf": "m"}, export={"generation": asked})
    [named] = [c for c in language_choices(recipe, _GENERATION) if c.name == "window"]
    assert (named.value, named.by_hand, sees in named.reason) == ("64", True, True)


def test_the_exported_program_says_how_its_attention_is_computed() -> None:
    exported = _GENERATION.model_copy(update={"path": "fast", "attention": "kernel"})
    recipe = make_recipe(model={"hf": "m"}, export={"generation": {"context": 256}})
    _, attention, prefill, _ = language_choices(recipe, exported)
    assert attention.value == "etdeploy's kernel"
    assert "exported so" in attention.reason
    assert "2,048 positions" in prefill.reason


def test_the_exported_program_says_which_path_and_methods() -> None:
    path, _, prefill, decode = language_choices(make_recipe(model={"hf": "m"}), _GENERATION)
    assert path.value == "plain"
    assert path.reason.endswith(": it has a bias")
    assert (prefill.name, prefill.value) == ("prefill", "up to 128 tokens")
    assert (decode.name, decode.value) == ("decode_128", "one token")
    assert "128 of 2,048" in decode.reason


@pytest.mark.parametrize(
    ("calibration", "value", "by_hand"),
    [
        (None, "weighted by activations", False),
        ("/here/text.txt", "weighted by activations", True),
        ("none", "by the weights alone", True),
        ({"text": "/here/text.txt", "prompts": ["one"]}, "weighted by activations", True),
    ],
)
def test_scales_of_4_bit_weights(calibration: Any, value: str, by_hand: bool) -> None:
    export = {"quantization": "8da4w", "calibration": calibration}
    scales, *_ = language_choices(make_recipe(model={"hf": "m"}, export=export), None)
    assert (scales.name, scales.value, scales.by_hand) == ("scales", value, by_hand)
    if isinstance(calibration, dict):
        assert scales.reason == "export.calibration is /here/text.txt and prompts"


def test_rounding_is_told_where_it_is_not_the_default() -> None:
    export = {"quantization": "8da4w", "rounding": "gptq"}
    _, rounding, *_ = language_choices(make_recipe(model={"hf": "m"}, export=export), None)
    assert (rounding.name, rounding.value, rounding.by_hand) == ("rounding", "gptq", True)
    assert "export.rounding is gptq" in rounding.reason


def test_a_number_of_bits_is_explained() -> None:
    export = {"quantization": "8da4w", "target_bits": 5}
    *_, bits, _, _ = language_choices(make_recipe(model={"hf": "m"}, export=export), None)
    assert (bits.name, bits.value) == ("bits", "5 bits per weight on average")
    assert bits.by_hand
    assert "export.target_bits" in bits.reason


@pytest.mark.parametrize(
    ("model", "export", "by_hand"),
    [
        ({}, {}, False),
        ({}, {"scaling": "awq"}, True),
        ({}, {"scaling": "none"}, None),
        ({}, {"calibration": "none"}, None),
        ({}, {"quantization": "8da8w"}, None),
        ({"lora": {"a": "org/x"}, "merge": False}, {}, None),
    ],
)
def test_inputs_are_scaled_where_a_text_is_read(
    model: dict[str, Any], export: dict[str, Any], by_hand: bool | None
) -> None:
    recipe = make_recipe(model={"hf": "m", **model}, export={"quantization": "8da4w", **export})
    found = {choice.name: choice for choice in language_choices(recipe, None)}
    assert ("scaling" in found) == (by_hand is not None)
    if by_hand is not None:
        assert (found["scaling"].value, found["scaling"].by_hand) == ("awq", by_hand)


@pytest.mark.parametrize(
    ("model", "value", "fact"),
    [
        ({"lora": "/adapters/poems"}, "poems", "merged"),
        ({"lora": {"a": "org/x", "b": "org/y"}}, "a, b", "merged"),
        ({"lora": {"a": "org/x", "b": "org/y"}, "merge": False}, "a, b", "--lora NAME"),
    ],
)
def test_what_becomes_of_adapters(model: dict[str, Any], value: str, fact: str) -> None:
    _, _, adapters = language_choices(make_recipe(model={"hf": "m", **model}), None)
    assert (adapters.name, adapters.value, adapters.by_hand) == ("adapters", value, True)
    assert fact in adapters.reason


def test_the_layout_is_named_where_it_is_executorchs() -> None:
    recipe = make_recipe(model={"hf": "m"}, export={"generation": {"layout": "executorch"}})
    layout, _, attention = language_choices(recipe, None)
    assert (layout.name, layout.value) == ("layout", "executorch")
    assert "LlmModule" in layout.reason
    assert attention.value == "ExecuTorch's kernel"
    assert "llama::custom_sdpa" in attention.reason
