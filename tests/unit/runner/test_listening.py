"""What is said to a runner that listens, and what it answers."""

from __future__ import annotations

import re

import pytest

from etdeploy.runner.generation import (
    End,
    PrefillProgress,
    Sampling,
    Token,
    answer_line,
    listening_arguments,
    parse_event,
)


def test_a_line_has_the_sampling_and_the_ids() -> None:
    sampling = Sampling(temperature=0.7, top_k=40, top_p=0.95, seed=2**40)
    words = answer_line(12, 30, sampling, (5, 6)).split(" ")
    assert words == ["answer", "12", "30", "0.7", "40", "0.95", str(2**40), "0.0", "1.0", "5", "6"]


def test_lines_tell_of_parts_tokens_and_the_end() -> None:
    assert parse_event("taken 128") == PrefillProgress(tokens=128)
    assert parse_event("token 7 1250000") == Token(id=7, took_ms=1.25)
    assert parse_event("end new_tokens") == End(reason="new_tokens")


@pytest.mark.parametrize("line", ["", "7", "token 7", "token 7 x", "end", "end it", "taken 1 2"])
def test_another_line_is_none_of_an_answer(line: str) -> None:
    with pytest.raises(ValueError, match=re.escape(repr(line)) + "|invalid literal"):
        parse_event(line)


def test_the_command_line_says_how_long_it_listens() -> None:
    words = listening_arguments("p.pte", "r.txt", forgotten_s=60, threads=2)
    options = dict(zip(words[::2], words[1::2], strict=True))
    assert (options["--generation"], options["--listen"]) == ("r.txt", "60")
    assert options["--threads"] == "2"
