"""What comes back from a device's shell."""

from __future__ import annotations

import pytest

from etdeploy.devices.shell import ShellResult, parse_marked


def test_the_marker_gives_the_exit_code() -> None:
    result = parse_marked(b"text without newlinem-1:139\n", "m-1")
    assert result == ShellResult(139, "text without newline")
    assert not result.ok


def test_lines_of_an_old_shells_terminal_are_put_right() -> None:
    assert parse_marked(b"a\r\nb\r\nm-1:0\r\n", "m-1") == ShellResult(0, "a\nb\n")


@pytest.mark.parametrize("output", [b"", b"half of the out", b"m-1:", b"m-1:x\n"])
def test_without_the_marker_the_shell_did_not_end(output: bytes) -> None:
    assert parse_marked(output, "m-1") is None
