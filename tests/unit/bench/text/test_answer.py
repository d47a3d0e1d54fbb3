"""Rates, and why a text ended."""

from __future__ import annotations

import pytest

from etdeploy.bench.text.text_generator import Answer, Spoken, answer_of, room, summary
from etdeploy.core.errors import UsageError
from tests.support.talk_values import GENERATION


def _answer(
    new: int = 5,
    *,
    fitting: int = 61,
    wanted: int = 5,
    stopped: bool = False,
    first_ms: float = 20,
    taken: int = 4,
) -> Answer:
    spoken = Spoken(
        taken=taken, first_token_ms=first_ms, token_ms=(4.0,) * (new - 1),
        token_ids=tuple(range(new)), stopped=stopped,
    )  # fmt: skip
    return answer_of(spoken, (1, 2, 3, 4), "text", fitting, wanted)


def test_rates_are_of_the_prompt_and_of_the_tokens_after_the_first() -> None:
    answer = _answer()
    assert (answer.prompt_tokens, answer.ttft_ms) == (4, 20.0)
    assert answer.prefill_tokens_per_s == pytest.approx(200)
    assert answer.decode_tokens_per_s == pytest.approx(250)
    assert _answer(1).decode_tokens_per_s is None
    assert _answer(first_ms=0).prefill_tokens_per_s == 0


@pytest.mark.parametrize(
    ("asked", "stopped", "words"),
    [
        ({}, "max_new_tokens", "ended by --max-new-tokens 5"),
        ({"stopped": True}, "stop_token", "ended by the stop token 4"),
        (
            {"fitting": 5, "wanted": 9},
            "context_full",
            "ended because the context of 64 tokens is full (--context 128)",
        ),
        ({"fitting": 5, "wanted": 9, "stopped": True}, "stop_token", "stop token"),
    ],
)
def test_the_end_has_a_reason(asked: dict[str, int], stopped: str, words: str) -> None:
    answer = _answer(**asked)  # type: ignore[arg-type]
    assert answer.stopped == stopped
    assert words in summary(answer, GENERATION)


def test_a_line_for_people() -> None:
    assert summary(_answer(), GENERATION) == (
        "first token after 20.00 ms, prefill 200.0 tokens/s (4), decode 250.0 tokens/s (5), "
        "ended by --max-new-tokens 5"
    )


def test_what_was_in_the_cache_is_not_counted_as_prefilled() -> None:
    answer = _answer(taken=1)
    assert (answer.prompt_tokens, answer.cached_tokens) == (4, 3)
    assert answer.prefill_tokens_per_s == pytest.approx(50)
    assert "prefill 50.0 tokens/s (1 of 4)" in summary(answer, GENERATION)


def test_the_last_token_needs_no_room() -> None:
    assert room(GENERATION, 64) == 1
    assert room(GENERATION, 1) == 64


@pytest.mark.parametrize(
    ("tokens", "words"), [(65, "65 tokens of prompt do not fit"), (0, "no token")]
)
def test_a_prompt_that_cannot_be_answered(tokens: int, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        room(GENERATION, tokens)


def test_a_remedy_has_room_for_the_prompt() -> None:
    with pytest.raises(UsageError) as caught:
        room(GENERATION, 700)
    assert str(caught.value.remedy).endswith("--context 1024")
