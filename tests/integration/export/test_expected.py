"""What a language model gives eagerly: its texts, and how well it predicts one."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.export import run_support

pytest.importorskip("transformers", reason="needs etdeploy[llm]")
pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    found: dict[str, Any] = run_support("expected_run")
    return found


@pytest.mark.parametrize("name", ["Llama", "Gemma3Text"])
def test_the_text_is_that_of_transformers_own_generate(found: dict[str, Any], name: str) -> None:
    told = found["texts"][name]
    assert told["before"] == told["generate"]
    assert told["by_methods"] == told["generate"]
    assert told["after"] == told["generate"]
    # Otherwise one way may round to another token.
    assert min(second for _, second in told["gaps"]) > 1e-3


def test_the_text_is_no_repetition(found: dict[str, Any]) -> None:
    # Of which a wrong position or mask would change nothing.
    assert len(set(found["texts"]["Llama"]["generate"])) > 3


@pytest.mark.parametrize("name", ["Llama", "Gemma3Text"])
def test_nothing_of_a_text_stays_in_the_model(found: dict[str, Any], name: str) -> None:
    told = found["texts"][name]
    assert told["left"] == 0
    assert told["attention"] == ["sdpa", "etdeploy_grouped"]


def test_perplexity_and_divergences_are_those_of_all_logits_at_once(found: dict[str, Any]) -> None:
    told = found["quality"]
    assert told["perplexity"][0] == pytest.approx(told["perplexity"][1], rel=1e-4)
    for name, wanted in told["wanted"].items():
        assert told["cost"][name] == pytest.approx(wanted, rel=1e-3), name
    assert 0 < told["cost"]["mean_kl_divergence"] < told["cost"]["max_kl_divergence"]
    # As of any other output.
    loss, wanted = ({k: v for k, v in each.items() if v is not None} for each in told["loss"])
    assert loss.pop("name") == wanted.pop("name") == "logits"
    assert loss == pytest.approx(wanted, rel=1e-4)


def test_a_model_is_as_good_as_itself(found: dict[str, Any]) -> None:
    same = found["quality"]["same"]
    assert same["perplexity"] == found["quality"]["perplexity"][0]
    assert (same["same_top_percent"], same["logit_max_abs_error"]) == (100, 0)
    assert (same["mean_kl_divergence"], same["max_kl_divergence"]) == (0, 0)


def test_logits_that_are_no_numbers_give_no_numbers(found: dict[str, Any]) -> None:
    told = found["undefined"]
    assert (told["text"], told["perplexity"]) == ("undefined", None)
    assert told["undefined"] == 148  # one logit of each predicted token
    cost = told["cost"]
    numbers = {name for name, value in cost.items() if value is not None}
    assert numbers == {"same_top_percent"}


def test_a_large_loss_of_perplexity_is_a_note_with_a_remedy(found: dict[str, Any]) -> None:
    told = found["warnings"]
    assert told["small"] == []
    for name, after, remedy in (
        ("large", "30", "export.quantization=8da8w"),
        ("undefined", "undefined", "export.quantization=8da8w"),
        ("finest", "30", "export.quantization=none"),
    ):
        [note] = told[name]
        assert all(part in note for part in ("14", after, "text.txt", remedy)), note


def test_a_model_without_a_tokenizer_is_not_evaluated_and_says_so(found: dict[str, Any]) -> None:
    [note] = found["warnings"]["no tokenizer"]
    assert "not evaluated" in note
    assert "evaluation.txt" in note


def test_each_window_begins_as_a_text_does(found: dict[str, Any]) -> None:
    assert found["windows"] == [[1, 5, 6, 7], [1, 8, 9]]


def test_a_long_prompt_needs_every_method_and_several_calls(found: dict[str, Any]) -> None:
    # Beyond the 128 positions of the shortest methods, or what one call takes, if that is not far.
    assert found["long"] == [136, 136, 136, 40, None]


def test_rounding_moves_the_logits_of_a_model_in_floats_by_little(found: dict[str, Any]) -> None:
    told = found["rounding"]
    assert 0 < told["noise"]["max_error"] < 1e-3
    assert 0.9999 < told["noise"]["min_cosine"] <= 1
    assert (told["without_weights"], told["restored"]) == (None, True)


def test_a_draft_saves_calls_as_far_as_it_is_right(found: dict[str, Any]) -> None:
    told = found["rounding"]
    assert told["equal"] == {"right": True, "wrong": True, "short": True}
    # Twelve tokens: all in one call; five, and a call for each other; three, and nine.
    assert told["calls"] == [1, 1 + 7, 1 + 9]
