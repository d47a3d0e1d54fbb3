"""The text of one generation, shown as it comes."""

from __future__ import annotations

from pathlib import Path

import pytest

from etdeploy.bench.text.text_generator import Reply, repeated_tokens
from etdeploy.program.tokenizer import Tokenizer
from tests.support.tokenizers import byte_level

_TOKENIZER = Tokenizer(Path("tokenizer"), byte_level())


def test_text_comes_in_pieces_and_without_its_stop_token() -> None:
    shown: list[str] = []
    stop = _TOKENIZER.encode("!")[0]
    reply = Reply(_TOKENIZER, _TOKENIZER.encode("a"), (stop,), shown.append)
    for token in (*_TOKENIZER.encode("b\u00e9"), stop):
        reply.take(token)
    reply.end()
    assert (shown, reply.text) == (["b", "\u00e9"], "b\u00e9")
    assert reply.tokens[-1] == stop


def test_half_a_character_at_the_end_is_shown() -> None:
    shown: list[str] = []
    reply = Reply(_TOKENIZER, (), (), shown.append)
    reply.take(_TOKENIZER.encode("\u00e9")[0])
    assert shown == []
    reply.end()
    assert (shown, reply.text) == (["\ufffd"], "\ufffd")


def test_without_a_tokenizer_ids_are_shown() -> None:
    shown: list[str] = []
    reply = Reply(None, (1,), (9,), shown.append)
    for token in (3, 9):
        reply.take(token)
    reply.end()
    assert ("".join(shown), reply.text) == ("3 9 ", None)


@pytest.mark.parametrize(
    ("tokens", "period"),
    [
        ([7] * 96, 1),
        ([7] * 95, 0),
        ([1, 2, 3] * 33, 3),
        ([5] * 200 + [6], 0),
        ([*range(50)] * 4, 50),
        ([*range(50)] * 3, 0),
        ([*range(300)], 0),
    ],
)
def test_a_text_that_repeats_itself(tokens: list[int], period: int) -> None:
    assert repeated_tokens(tokens) == period
