"""Scripts as words that every login shell leaves alone."""

from __future__ import annotations

import re
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etdeploy.devices.ssh.connection import as_argument, as_input, encoded


def decoded(words: str) -> str:
    """What `printf %b` makes of it."""
    octal = re.sub(rb"\\0([0-7]{3})", lambda m: bytes([int(m[1], 8)]), words.encode())
    return octal.decode()


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
def test_printf_gives_the_script_back(script: str) -> None:
    assert decoded(encoded(script)) == script


@given(st.text())
def test_no_shell_finds_anything_to_expand_between_single_quotes(script: str) -> None:
    try:
        words = encoded(script)
    except UnicodeEncodeError:
        return
    assert words.isascii()
    assert words.isprintable()
    assert not re.search(r"['!]|\\[^0]|\\$", words)


@pytest.mark.parametrize("script", ["echo 'it''s'", "a\nb", "é\\n!", ""])
def test_the_script_is_the_last_word_of_the_command(script: str) -> None:
    exec_, sh, option, _, name, words = shlex.split(as_argument(script))
    assert (exec_, sh, option, name) == ("exec", "sh", "-c", "etdeploy")
    assert decoded(words) == script
    assert shlex.split(as_input())[:3] == ["exec", "sh", "-c"]
