"""Names of operators are found in files that cannot be started."""

from __future__ import annotations

from pathlib import Path

import pytest

from etdeploy.runner.compile import find_names

_MACH_O = b"\xcf\xfa\xed\xfe"


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"\0self::scaled.out\0", True),
        # A value of another kind stands before it; or a text that ends in the same bytes.
        (b"\x3f\x80self::scaled.out\0", True),
        (b"no memory in self::scaled.out\0", True),
        (b"\0self::scaled.out_more\0", False),
        (b"\0self::scaled.out is slow\0", False),
        (b"\0myself::scaled.out\0", False),
        (b"\0my::self::scaled.out\0", False),
        (b"\0self::scaledXout\0", False),
        (b"", False),
    ],
)
def test_a_name_is_a_whole_string(data: bytes, found: bool, tmp_path: Path) -> None:
    runner = tmp_path / "runner"
    runner.write_bytes(_MACH_O + b"\x07\0\0\1" + data)
    assert bool(find_names([runner], ["self::scaled.out"])) == found


def test_names_are_found_in_any_of_the_files(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).write_bytes(_MACH_O + f"\0my::{name}\0".encode())
    files = [tmp_path / "one", tmp_path / "two"]
    assert find_names(files, ["my::one", "my::two", "my::three"]) == {"my::one", "my::two"}


def test_no_file_is_read_where_nothing_is_looked_for(tmp_path: Path) -> None:
    assert find_names([tmp_path / "absent"], []) == frozenset()
