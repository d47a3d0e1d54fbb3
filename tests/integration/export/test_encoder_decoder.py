"""Encoder-decoder models: how their texts begin, and what their methods give."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.export import run_support
from tests.support.facts import lacks

pytest.importorskip("transformers", reason="needs etdeploy[llm]")
pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def found() -> Any:
    return run_support("encoder_decoder")


def test_a_text_begins_as_generate_begins_it(found: Any) -> None:
    prompts = found["prompts"]
    heard = prompts.pop("heard")
    assert prompts == {
        "start": [2],
        "forced": [2, 9],
        "translation": [2, 23],
        "speech": [2, 22, 30, 31],
        "untimed": [2, 31],
        "detected": [2, heard],
    }


def test_suppressed_tokens_get_the_least_logit(found: Any) -> None:
    assert found["suppressed"] == {
        "never": [0, 40], "first": [0, 45], "rest": True, "without": True,
    }  # fmt: skip


def test_the_methods_give_the_logits_of_the_models_own_forward(found: Any) -> None:
    methods = found["methods"]
    assert methods["generating"] == [["decode", 16, 1]]
    assert methods["cross"] == [[2, 3, 8]] * 4
    assert methods["contiguous"]
    assert methods["error"] < 1e-5


def test_what_cannot_be_exported_is_named(found: Any) -> None:
    refused = found["refused"]
    assert not lacks(refused["language"][0], "'xx'")
    assert refused["language"][2] == "benchmark.input.language"
    assert not lacks(refused["start"][1], "decoder_start_token_id", "generation_config.json")
    assert not lacks(refused["attention"][0], "BartForConditionalGeneration", "hard-codes")


def test_speech_is_as_long_as_what_the_model_takes_of_it(found: Any) -> None:
    random, cut = found["speech"]
    assert random[:2] == [1.5, False]
    assert not lacks(random[2], "random", "--audio FILE")
    assert cut[:2] == [1.0, True]
    assert not lacks(cut[2], "1 s", "1.5 s")
