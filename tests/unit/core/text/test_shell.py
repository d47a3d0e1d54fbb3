"""Paths in commands that a user pastes."""

from __future__ import annotations

import shlex

import pytest

from etdeploy.core.commands import quoted


@pytest.mark.parametrize("name", ["/a b/c", "/it's", '/"', "/$HOME/`id`;rm", "/new\nline", ""])
def test_a_shell_reads_one_word(name: str) -> None:
    assert shlex.split(f"cd {quoted(name)} && pwd") == ["cd", name, "&&", "pwd"]
