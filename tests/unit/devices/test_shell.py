"""What comes back from a device's shell."""

from __future__ import annotations

import pytest

from etdeploy.devices.shell import (
    Lines,
    Received,
    ShellResult,
    is_marked,
    parse_marked,
    take_marked,
)


def test_lines_of_an_old_shells_terminal_are_put_right() -> None:
    assert parse_marked(b"a\r\nb\r\nm-1:0\r\n", "m-1") == ShellResult(0, "a\nb\n")


@pytest.mark.parametrize("output", [b"", b"half of the out", b"m-1:", b"m-1:x\n"])
def test_without_the_marker_the_shell_did_not_end(output: bytes) -> None:
    assert parse_marked(output, "m-1") is None


@pytest.mark.parametrize(
    ("output", "ended"),
    [
        (b"textm-1:0\n", True),
        (b"text\r\nm-1:255\r\n", True),
        (b"", False),
        (b"m-1:", False),
        (b"m-1:1", False),
        (b"m-1:0\nmore\n", False),
        (b"m-2:0\n", False),
    ],
)
def test_an_output_has_ended_with_the_whole_line_of_its_marker(output: bytes, ended: bool) -> None:
    assert is_marked(output, "m-1") is ended


def test_results_are_taken_one_by_one_from_an_output_that_goes_on() -> None:
    output = bytearray(b"one\nm:0\ntwom:41\nm:")
    assert take_marked(output, "m") == ShellResult(0, "one\n")
    assert take_marked(output, "m") == ShellResult(41, "two")
    # The digits are not there yet, and then not all of them may be.
    assert take_marked(output, "m") is None
    output += b"1"
    assert take_marked(output, "m") is None
    output += b"2\nrest"
    assert take_marked(output, "m") == ShellResult(12, "")
    assert output == b"rest"


def test_lines_come_out_when_they_are_whole() -> None:
    heard: list[str] = []
    lines = Lines(heard.append)
    lines.take(b"on")
    assert heard == []
    lines.take(b"e\r\n\nb\xc3")
    lines.take(b"\xa9b\xc3\xa9\nrest")
    assert heard == ["one", "", "b\u00e9b\u00e9"]


def test_lines_that_came_in_pieces_are_whole_when_they_are_asked_for() -> None:
    received = Received()
    assert received.line() is None
    for part in (b"on", b"e\r\n\ntw", b"o"):
        received.add(part)
    assert [received.line() for _ in range(3)] == ["one", "", None]
    assert [received.rest(), received.rest()] == ["two", None]
