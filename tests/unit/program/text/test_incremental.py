"""Text comes out when it can no longer change."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer

from etdeploy.program.tokenizer import TextStream
from tests.support.tokenizers import byte_level, sentence_piece

_TOKENIZERS = {"bytes": byte_level, "sentence piece": sentence_piece}


def _stream(tokenizer: Tokenizer, prompt: list[int]) -> TextStream:
    return TextStream(lambda ids: str(tokenizer.decode(list(ids))), prompt)


@pytest.mark.parametrize("kind", _TOKENIZERS)
@pytest.mark.parametrize(
    "text", [" is blue.", " caf\u00e9 \u4f60\u597d \U0001f468\u200d\U0001f467 \u00df", "a\n\n  b"]
)
def test_the_pieces_are_the_whole_text(kind: str, text: str) -> None:
    tokenizer = _TOKENIZERS[kind]()
    prompt = tokenizer.encode("The sky").ids
    new = tokenizer.encode("The sky" + text).ids[len(prompt) :]
    stream = _stream(tokenizer, prompt)
    pieces = [stream.add(token) for token in new]
    assert "".join(pieces) + stream.end() == text
    assert not any("\ufffd" in piece for piece in pieces)


def test_half_a_character_is_told_at_the_end() -> None:
    tokenizer = byte_level()
    stream = _stream(tokenizer, [])
    assert [stream.add(token) for token in tokenizer.encode("\u20ac").ids[:2]] == ["", ""]
    assert stream.end() == "\ufffd"
    assert stream.end() == ""


def test_what_is_no_text_does_not_hold_up_what_follows() -> None:
    tokenizer = byte_level()
    stream = _stream(tokenizer, [])
    broken, letter = tokenizer.encode("\u20ac").ids[0], tokenizer.encode("x").ids[0]
    assert [stream.add(token) for token in (broken, letter, letter)] == ["", "\ufffdx", "x"]


@pytest.mark.parametrize("kind", _TOKENIZERS)
def test_special_tokens_are_not_text(kind: str) -> None:
    tokenizer = _TOKENIZERS[kind]()
    stream = _stream(tokenizer, tokenizer.encode("The").ids)
    [end] = tokenizer.encode("<|end|>", add_special_tokens=False).ids[-1:]
    sky = tokenizer.encode("The sky").ids[len(tokenizer.encode("The").ids) :]
    pieces = [stream.add(token) for token in (*sky, end, end)]
    assert "".join(pieces) + stream.end() == " sky"


def test_a_long_text_is_decoded_in_small_parts() -> None:
    tokenizer, longest = byte_level(), 0

    def decode(ids: object) -> str:
        nonlocal longest
        longest = max(longest, len(list(ids)))  # type: ignore[call-overload]
        return str(tokenizer.decode(list(ids)))  # type: ignore[call-overload]

    stream = TextStream(decode, tokenizer.encode("x" * 500).ids)
    assert "".join(stream.add(token) for token in tokenizer.encode("y" * 500).ids) == "y" * 500
    assert longest < 20
