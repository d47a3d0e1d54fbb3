"""The parts of a large file, and the commands for them."""

from __future__ import annotations

import pytest

from etdeploy.devices.remote.store import arrived, split_parts

MIB = 1 << 20


@pytest.mark.parametrize("size_bytes", [1, 4 * MIB - 1, 4 * MIB, 4 * MIB + 1, 11 * MIB])
def test_parts_cover_a_file_once(size_bytes: int) -> None:
    found = split_parts(size_bytes, 4 * MIB)
    assert [part.number for part in found] == list(range(len(found)))
    assert [part.start for part in found] == [0, *(part.end for part in found[:-1])]
    assert found[-1].end == size_bytes
    assert {part.size for part in found[:-1]} <= {4 * MIB}
    assert 0 < found[-1].size <= 4 * MIB


@pytest.mark.parametrize(
    ("there_bytes", "count"),
    [(0, 0), (4 * MIB - 1, 0), (4 * MIB, 1), (9 * MIB - 1, 2), (9 * MIB, 3), (9 * MIB + 1, 0)],
)
def test_only_whole_parts_have_arrived(there_bytes: int, count: int) -> None:
    found = split_parts(9 * MIB, 4 * MIB)
    assert arrived(found, there_bytes) == found[:count]
