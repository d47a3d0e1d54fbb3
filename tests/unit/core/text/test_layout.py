"""Tables and lines in terminals of any width."""

from __future__ import annotations

import pytest

from etdeploy.core.layout import fit, table

ROWS = [("a", "1.5", "some words that go on for a while"), ("longer", None, "few")]
COLUMNS = ("name", "ms", "what it is")


def test_the_last_column_is_wrapped_where_it_begins() -> None:
    assert table(COLUMNS, ROWS, right=("ms",), width=32) == (
        "name     ms  what it is\n"
        "------  ---  -------------------\n"
        "a       1.5  some words that go\n"
        "             on for a while\n"
        "longer    -  few"
    )


def test_rows_become_paragraphs_where_columns_would_be_too_narrow() -> None:
    assert table(COLUMNS, ROWS, width=20) == (
        "a\n  ms: 1.5\n  what it is: some\n    words that go on\n    for a while\n"
        "longer\n  what it is: few"
    )
    marked = table(("", "what", "needed for"), [("--", "the Android NDK", "phones")], width=20)
    assert marked == "-- the Android NDK\n  needed for: phones"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("short", "short"),
        ("  name      some words behind it", "  name      some words\n            behind it"),
        ("  name=value because it has a reason", "  name=value because it\n      has a reason"),
        (f"  {'x' * 30} and more", f"  {'x' * 30}\n      and more"),
        ("", ""),
    ],
)
def test_lines_are_wrapped_below_their_last_column(line: str, expected: str) -> None:
    assert fit(line, 24) == expected
    assert fit(line, None) == line
