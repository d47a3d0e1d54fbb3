"""Quantized language models: every step of the program gives the quantized model's logits."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.export import run_support

pytest.importorskip("transformers", reason="needs etdeploy[llm]")
pytestmark = pytest.mark.integration

_NAMES = (
    "8da8w",
    "mixed",
    "default",
    "gptq",
    "mixed bits",
    "told of layers",
    "all in 4 bits",
    "scales",
    "floats",
    "int8_dynamic",
    "no such module",
    "only a table",
    "nothing left",
)
_BYTES, _NIBBLES = (
    "quantized_decomposed::embedding_byte.out",
    "quantized_decomposed::embedding_4bit.out",
)
# Of the tied tensor: 128 tokens of 64 values.
_VALUES = 128 * 64


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = str(tmp_path_factory.mktemp("quantized"))
    made: dict[str, Any] = run_support("quantized_text", folder, *_NAMES)
    return made


@pytest.mark.parametrize(
    "name", ["8da8w", "mixed", "default", "gptq", "mixed bits", "all in 4 bits", "int8_dynamic"]
)
def test_the_program_computes_what_the_quantized_model_does(
    found: dict[str, Any], name: str
) -> None:
    told = found[name]
    # Of weights that nobody quantized, and of others: a wrong scale or nibble moves logits by ones.
    assert told["moved"] > 0.05
    assert told["cosine"] > 0.999
    assert told["distance"] < 0.03 * told["largest"]


def test_a_model_that_is_not_quantized_is_exact(found: dict[str, Any]) -> None:
    told = found["floats"]
    assert (told["moved"], told["notes"]) == (0, [])
    assert told["distance"] < 1e-4
    assert not {_BYTES, _NIBBLES} & set(told["operators"])


def test_the_rows_of_a_table_are_looked_up_in_their_bits(found: dict[str, Any]) -> None:
    for name, operator in (("8da8w", _BYTES), ("mixed", _NIBBLES)):
        assert operator in found[name]["operators"]
        assert "aten::embedding.out" not in found[name]["operators"]


def test_tied_weights_of_equal_bytes_are_stored_once(found: dict[str, Any]) -> None:
    saved = {name: found[name]["saved"] for name in ("8da8w", "default", "mixed", "floats")}
    assert saved == {"8da8w": _VALUES, "default": _VALUES, "mixed": 0, "floats": 4 * _VALUES}


def test_notes_say_what_was_quantized_and_how(found: dict[str, Any]) -> None:
    assert found["8da8w"]["notes"] == [
        "8da8w quantized 8 linear layers.",
        "The weights of embeddings have 8 bits, with a scale for each token.",
    ]
    assert found["mixed"]["notes"] == [
        "8da4w quantized 2 linear layers.",
        "Quantized with 8da4w, except: lm_head with 8da8w (1 linear layer), "
        "model.layers.0.mlp.down_proj with none (1 linear layer), model.layers.*.self_attn with "
        "8da4w in groups of 64 (4 linear layers).",
        "The scales of 4-bit weights are chosen by the weights alone.",
        "The weights of embeddings have 4 bits, with a scale for each 32 of them.",
    ]


def test_by_default_the_parts_that_lose_most_have_8_bits(found: dict[str, Any]) -> None:
    coverage, finer, scales, _ = found["default"]["notes"]
    assert coverage == "8da4w quantized 6 linear layers."
    assert "the output layer (1 layer)" in finer
    assert "the values of grouped-query attention (1 layer)" in finer
    assert "text.txt" in scales
    # What a recipe says of a part counts.
    explicit = found["all in 4 bits"]["notes"]
    assert explicit[0] == "8da4w quantized 6 linear layers."
    assert "lm_head with 8da4w (1 linear layer)" in explicit[1]
    assert "*.v_proj with 8da4w in groups of 64 (1 linear layer)" in explicit[1]
    assert not any("8 bits, since" in note for note in explicit)
    assert found["default"]["moved"] < found["all in 4 bits"]["moved"]


def test_gptq_says_what_it_rounded(found: dict[str, Any]) -> None:
    coverage, finer, rounded, same_text, _ = found["gptq"]["notes"]
    assert (coverage, finer) == tuple(found["default"]["notes"][:2])
    assert rounded == (
        "GPTQ rounded the 4-bit weights of 6 linear layers for the least error on text.txt; "
        "export.calibration names another text."
    )
    assert same_text.startswith("GPTQ fits the text that the model is evaluated on")
    assert found["gptq"]["moved"] != found["default"]["moved"]


def test_a_number_of_bits_says_which_layers_have_8(found: dict[str, Any]) -> None:
    bits, coverage, override, finer, *_ = found["mixed bits"]["notes"]
    mean, _, rest = bits.partition(
        " bits per weight, scales included, on average over 6 linear layers"
    )
    assert 5 < float(mean) <= 5.5
    assert " in 8 bits" in rest
    assert "q_proj" not in rest
    assert coverage.startswith("8da4w quantized ")
    assert "*.q_proj with 8da4w (1 linear layer)" in override
    assert "the output layer (1 layer)" in finer
    assert "export.target_bits" in finer
    assert found["mixed bits"]["moved"] < found["default"]["moved"]


def test_layers_are_told_of_in_turn_with_all_tokens(found: dict[str, Any]) -> None:
    told = found["told of layers"]
    experts = {n: count for n, count in told["tokens"].items() if "experts" in n}
    assert {told["tokens"][n] for n in told["tokens"] if n not in experts} == {told["text"]}
    assert not [name for name in told["tokens"] if "o_proj" in name]
    # In each layer, two parts as long as the first, and two experts for each of their tokens.
    chosen = [count for name, count in experts.items() if "gate_proj" in name]
    assert sum(chosen) == 2 * 2 * 2 * 125
    assert len(set(chosen)) > 1
    # The values are changed as soon as they are told of, and what follows is given the new ones.
    assert told["changed"] > 0.01
    assert told["distance"] < 1e-4
    assert told["routed"] < 1e-4
    assert told["experts"] == "etdeploy_separate"


def test_searched_scales_have_smaller_errors(found: dict[str, Any]) -> None:
    told = found["scales"]
    of_weights, of_outputs = told["weight_error"], told["output_error"]
    assert of_weights["weights"] < 0.9 * of_weights["torchao"]
    assert of_outputs["activations"] < 0.9 * of_outputs["weights"] < of_outputs["torchao"]
    assert (told["range"], told["zeros"]) == ([-8, 7], 0)
    # XNNPACK packs scales as bfloat16, and loads none that is not positive.
    assert told["positive"]
    assert told["bfloat16"]
    assert told["alike"], "rows depend on others"
    assert told["dead"], "a layer whose inputs are all zero has the scales of its weights"


@pytest.mark.parametrize(
    ("name", "key", "message", "remedy"),
    [
        (
            "no such module",
            ".lm_haed",
            "export.overrides: no module with a linear layer matches 'lm_haed'",
            "Its modules are: lm_head and others.",
        ),
        (
            "only a table",
            ".model.embed_tokens",
            "export.overrides: no module with a linear layer matches 'model.embed_tokens'",
            None,
        ),
        (
            "nothing left",
            "",
            "export.overrides leaves every linear layer in floats",
            "Leave a pattern out, or set export.quantization: none without export.overrides.",
        ),
    ],
)
def test_overrides_that_cannot_apply(
    found: dict[str, Any], name: str, key: str, message: str, remedy: str | None
) -> None:
    told = found[name]
    assert told[:2] == [message, f"export.overrides{key}"]
    assert remedy in (None, told[2])
