from pathlib import Path

import pytest

from etdeploy.core.diagnostics import (
    Diagnosis,
    FailurePattern,
    FailureTable,
    find_tables,
    update_page,
)
from etdeploy.core.errors import DeviceError


class GoneError(Exception):
    pass


TABLE = FailureTable(
    "A part",
    7,
    (
        FailurePattern(
            r"needs (?P<bytes>\d+) bytes|needs (?P<bytes2>0x\w+)",
            "{bytes} missing on {device}",
            "free {bytes} on {device}, not {other}",
            "pick another {bytes}",
            {"bytes": lambda number: f"{number} B"},
        ),
        FailurePattern(GoneError, "gone: {error}", "plug in {device}"),
        FailurePattern("needs", "something", "wait"),
    ),
)


@pytest.mark.parametrize(
    ("failure", "diagnosis"),
    [
        (
            "it needs 12 bytes",
            Diagnosis("12 B missing on p1", "free 12 B on p1, not {other}", "pick another 12 B"),
        ),
        (
            "it needs 0x1f",
            Diagnosis("0x1f missing on p1", "free 0x1f on p1, not {other}", "pick another 0x1f"),
        ),
        (GoneError("no {device}"), Diagnosis("gone: no {device}", "plug in p1")),
        (ValueError("it needs"), Diagnosis("something", "wait")),
        ("fine", None),
    ],
)
def test_the_first_pattern_that_matches_counts(
    failure: str | Exception, diagnosis: Diagnosis | None
) -> None:
    assert TABLE.diagnose(failure, device="p1") == diagnosis


def test_a_quoted_group_is_short_and_printable() -> None:
    table = FailureTable("A part", 7, (FailurePattern("(?P<name>x.*)", "{name}", ""),))
    found = table.diagnose("x\x1b[2J" + "y" * 500)
    assert found is not None
    assert found.cause == "x [2J" + "y" * 195


def test_an_error_has_the_cause_the_remedy_and_the_place() -> None:
    error = TABLE.error(DeviceError, "it needs 12 bytes", "p1", device="p1")
    assert (error.message, error.place) == ("12 B missing on p1", "p1")
    assert error.remedy == "free 12 B on p1, not {other}"
    with pytest.raises(LookupError, match="A part"):
        TABLE.error(DeviceError, "fine", "p1")


def test_the_page_has_every_table() -> None:
    page = (Path(__file__).parents[3] / "docs" / "troubleshooting.md").read_text()
    tables = find_tables()
    assert len(tables) >= 30
    assert page == update_page(page, tables), "docs/troubleshooting.md is old: doit run reference"
