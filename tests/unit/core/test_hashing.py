"""Digests of a file and of its parts."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from etdeploy.core import cancel
from etdeploy.core.errors import Interrupted
from etdeploy.core.hashing import sha256_file, sha256_parts

MIB = 1 << 20


@pytest.mark.parametrize("size_bytes", [0, 1, 2 * MIB - 1, 2 * MIB, 2 * MIB + 1, 5 * MIB + 3])
def test_parts_and_whole_are_of_the_same_bytes(tmp_path: Path, size_bytes: int) -> None:
    path = tmp_path / "file"
    content = bytes(i % 251 for i in range(1000)) * (size_bytes // 1000 + 1)
    path.write_bytes(content[:size_bytes])
    whole, digests = sha256_parts(path, 2 * MIB)
    assert whole == sha256_file(path)
    assert digests == tuple(
        hashlib.sha256(content[start : min(start + 2 * MIB, size_bytes)]).hexdigest()
        for start in range(0, size_bytes, 2 * MIB)
    )


def test_hashing_stops_on_request(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x")
    with cancel.trapped_signals():
        cancel.request()
        with pytest.raises(Interrupted):
            sha256_parts(path, MIB)
