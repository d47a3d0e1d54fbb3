"""How programs of other exporters generate text, as their own methods say it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from etdeploy.program.finished import (
    Contract,
    TokenFacts,
    constants_for,
    contract_of,
    generation_of,
)
from etdeploy.program.generation import (
    Attention,
    Generation,
    GenerationEncoder,
    GenerationMethod,
    Layout,
)
from etdeploy.program.inspect import describe, inspect_file
from tests.support.program_files import INT64, Plan, Tensor, pte

TOKENS, POSITION = Tensor((1, 63), INT64, dynamism=1), Tensor((1,), INT64)
FORWARD = Plan(inputs=(TOKENS, POSITION), outputs=(Tensor((1, 256)),))
FACTS: dict[str, Any] = {"get_max_context_len": (64,), "get_eos_ids": (2, 3), "get_bos_id": (1,)}


def found(
    folder: Path,
    forward: Plan = FORWARD,
    facts: TokenFacts | None = None,
    **constants: Any,
) -> Generation | str | None:
    methods = (Plan(name=name, inputs=(), outputs=values) for name, values in constants.items())
    path = folder / "model.pte"
    path.write_bytes(pte(forward, *methods))
    return generation_of(inspect_file(path), path.name, None, facts or TokenFacts())


def contract(folder: Path, *methods: Plan, **constants: Any) -> Contract | None:
    facts = (Plan(name=name, inputs=(), outputs=values) for name, values in constants.items())
    path = folder / "model.pte"
    path.write_bytes(pte(*methods, *facts))
    return contract_of(inspect_file(path))


@pytest.mark.parametrize(
    ("operator", "mode"), [("etdeploy::channelwise_linear", "file"), ("aten::add", "mmap")]
)
def test_a_program_whose_kernels_read_its_weights_is_read_into_memory(
    tmp_path: Path, operator: str, mode: str
) -> None:
    made = found(tmp_path, replace(FORWARD, operators=((operator, "out", 7),)), **FACTS)
    assert isinstance(made, Generation)
    assert made.load_mode == mode


_STOCK = {"get_max_seq_len": (64,), "enable_dynamic_shape": (True,), "get_eos_ids": (2,)}


@pytest.mark.parametrize(
    ("methods", "constants", "name", "missing"),
    [
        ((FORWARD,), _STOCK, "executorch", ()),
        ((FORWARD,), FACTS, "executorch", ("get_max_seq_len", "enable_dynamic_shape")),
        ((replace(FORWARD, name="prefill"),), _STOCK, "etdeploy", ("no method forward",)),
        ((replace(FORWARD, name="prefill"),), {}, None, ("get_vocab_size",)),
        ((replace(FORWARD, inputs=(TOKENS,)),), FACTS, None, ("without a KV cache",)),
        ((Plan(name="encode"),), FACTS, None, ("no method forward, but encode",)),
        ((FORWARD,), {}, None, ("get_vocab_size", "get_max_seq_len")),
    ],
)
def test_a_program_follows_a_contract_or_says_what_it_lacks(
    tmp_path: Path,
    methods: tuple[Plan, ...],
    constants: dict[str, Any],
    name: str | None,
    missing: tuple[str, ...],
) -> None:
    made = contract(tmp_path, *methods, **constants)
    assert made is not None
    assert made.name == name
    assert bool(made.missing) == bool(missing)
    assert all(each in made.text() for each in missing), made.text()


def test_a_program_of_etdeploy_generates_without_its_description(tmp_path: Path) -> None:
    one = replace(FORWARD, inputs=(Tensor((1, 1), INT64), POSITION))
    assert contract(
        tmp_path, replace(FORWARD, name="prefill"), replace(one, name="decode_32"),
        replace(one, name="decode"), **FACTS, get_rewind=(41,), get_cache_bits=(8,),
    )  # fmt: skip
    made = generation_of(inspect_file(tmp_path / "model.pte"), "m", None, TokenFacts())
    assert isinstance(made, Generation)
    assert [(m.name, m.role, m.max_tokens, m.capacity) for m in made.methods] == [
        ("prefill", "prefill", 63, 64), ("decode_32", "decode", 1, 32), ("decode", "decode", 1, 64)
    ]  # fmt: skip
    assert (made.rewind, made.layout, made.stop_ids) == (41, "etdeploy", (2, 3))
    assert made.cache == "int8"


def test_a_program_of_another_kind_has_no_contract(tmp_path: Path) -> None:
    assert contract(tmp_path, Plan(name="forward")) is None
    encoder = Plan(name="vision_encoder")
    assert contract(tmp_path, encoder, replace(FORWARD, name="text_decoder"), **FACTS) is None


def test_inspect_names_the_contract_and_the_facts(tmp_path: Path) -> None:
    contract(tmp_path, FORWARD, **_STOCK)
    text = describe(inspect_file(tmp_path / "model.pte"), "model.pte")
    assert "contract of generated text: ExecuTorch's" in text
    [line] = [line for line in text.splitlines() if "get_max_seq_len" in line]
    assert line.split()[-1] == "64"


def test_one_method_takes_prompts_and_single_tokens(tmp_path: Path) -> None:
    made = found(tmp_path, **FACTS)
    assert isinstance(made, Generation)
    assert made.methods == (
        GenerationMethod(name="forward", role="prefill", max_tokens=63, dynamic=True, capacity=64),
    )
    assert (made.vocabulary, made.context) == (256, 64)
    assert (made.bos_id, made.stop_ids, made.model) == (1, (2, 3), "model.pte")


def test_a_vision_language_model_has_the_facts_that_executorchs_runner_reads() -> None:
    encoder = GenerationEncoder(
        method="vision_encoder", image_id=49, prompt_ids=(1, 49), is_real=True, audio_s=None,
        preprocess_ms=1.0,
    )  # fmt: skip
    decoder = GenerationMethod(
        name="text_decoder", role="prefill", max_tokens=63, dynamic=True, capacity=64
    )
    made = Generation(
        methods=(decoder,), vocabulary=256, context=64, stop_ids=(2, 3), model="llava",
        path="fast", path_reason="",
    )  # fmt: skip
    facts = {
        "get_max_context_len": 64, "get_max_seq_len": 64, "get_vocab_size": 256,
        "use_kv_cache": True, "enable_dynamic_shape": True, "get_eos_ids": [2, 3],
        "use_sdpa_with_kv_cache": False,
    }  # fmt: skip
    assert constants_for(made.model_copy(update={"encoder": encoder})) == facts
    # A text's prompt is split into what the method takes at once.
    assert constants_for(made) == {**facts, "get_max_seq_len": 63}


@pytest.mark.parametrize(
    ("layout", "attention", "operators"),
    [
        ("executorch", "kernel", True),
        ("executorch", "stock", False),
        ("etdeploy", "kernel", False),
    ],
)
def test_executorchs_operators_are_a_fact_of_its_layout_alone(
    layout: Layout, attention: Attention, operators: bool
) -> None:
    method = GenerationMethod(
        name="forward", role="decode", max_tokens=1, dynamic=False, capacity=64
    )
    made = Generation(
        methods=(method,), vocabulary=256, context=64, bos_id=1, model="m", path="fast",
        path_reason="", layout=layout, attention=attention,
    )  # fmt: skip
    facts = constants_for(made)
    assert (facts["use_sdpa_with_kv_cache"], facts["enable_dynamic_shape"]) == (operators, False)
    assert (facts["get_bos_id"], facts["get_max_seq_len"]) == (1, 1)
    assert "get_eos_ids" not in facts


def test_a_method_of_a_single_token(tmp_path: Path) -> None:
    one = replace(FORWARD, inputs=(Tensor((1, 1), INT64), POSITION))
    made = found(tmp_path, one, **FACTS)
    assert isinstance(made, Generation)
    [method] = made.methods
    assert (method.role, method.max_tokens, method.dynamic) == ("decode", 1, False)


def test_positions_and_logits_of_each_token(tmp_path: Path) -> None:
    each = Plan(inputs=(TOKENS, Tensor((63,), INT64, dynamism=1)), outputs=(Tensor((1, 63, 300)),))
    made = found(tmp_path, each, get_max_seq_len=(128,))
    assert isinstance(made, Generation)
    assert (made.vocabulary, made.context) == (300, 128)
    assert (made.methods[0].verify_tokens, made.verify_tokens) == (16, 16)


def test_a_method_of_etdeploy_may_take_which_logits_it_gives(tmp_path: Path) -> None:
    rows = Tensor((8,), INT64, dynamism=1)
    prefill = Plan(name="prefill", inputs=(TOKENS, POSITION, rows), outputs=(Tensor((1, 8, 300)),))
    made = found(tmp_path, prefill, get_max_context_len=(64,), get_rewind=(70,))
    assert isinstance(made, Generation)
    assert (made.vocabulary, made.verify_tokens) == (300, 8)
    # Rejected tokens have to be taken back.
    assert made.model_copy(update={"rewind": 6}).verify_tokens == 0
    assert "takes 3 inputs" in str(found(tmp_path, replace(prefill, name="forward"), **FACTS))


def test_the_tokenizer_says_what_the_program_does_not(tmp_path: Path) -> None:
    facts = TokenFacts(bos_id=7, stop_ids=(8,), adds_bos=True)
    made = found(tmp_path, facts=facts, get_max_seq_len=(64,))
    assert isinstance(made, Generation)
    assert (made.bos_id, made.stop_ids) == (7, (8,))
    made = found(tmp_path, facts=facts, **FACTS)
    assert isinstance(made, Generation)
    assert (made.bos_id, made.stop_ids) == (1, (2, 3))
    made = found(tmp_path, facts=replace(facts, adds_bos=False), **FACTS)
    assert isinstance(made, Generation)
    assert made.bos_id is None


def test_no_language_model(tmp_path: Path) -> None:
    assert found(tmp_path) is None
    assert found(tmp_path, get_anything=(1,)) is None


@pytest.mark.parametrize(
    ("forward", "says"),
    [
        (replace(FORWARD, inputs=(TOKENS,)), "without a KV cache"),
        (replace(FORWARD, inputs=(TOKENS, POSITION, POSITION)), "3 inputs"),
        (replace(FORWARD, inputs=(Tensor((1, 63)), POSITION)), "first input"),
        (replace(FORWARD, inputs=(TOKENS, Tensor((2,), INT64))), "second input"),
        (replace(FORWARD, inputs=(Tensor((1, 63), INT64), POSITION)), "63 tokens, and no fewer"),
        (replace(FORWARD, outputs=(Tensor((1, 256), 5),)), "float16"),
        (replace(FORWARD, outputs=(Tensor((1, 5, 256)),)), "[1, 5, 256]"),
        (replace(FORWARD, name="image"), "no method forward"),
    ],
)
def test_why_a_language_model_generates_nothing(tmp_path: Path, forward: Plan, says: str) -> None:
    why = found(tmp_path, forward, use_kv_cache=(False,), get_max_seq_len=(64,))
    assert isinstance(why, str)
    assert says in why
