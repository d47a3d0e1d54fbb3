"""The file of what waits for the database."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from etdeploy.core.errors import BuildError
from etdeploy.farm.night.database_writer import Spool


def texts(spool: Spool) -> list[str]:
    return [line for line, _ in spool.lines()]


def test_lines_come_back_in_their_order(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "a" / "spool")
    assert spool.is_empty
    spool.add("one", "naïve")
    spool.add("three")
    assert texts(spool) == texts(Spool(spool.path)) == ["one", "naïve", "three"]
    [(_, after), *_] = spool.lines()
    assert [line for line, _ in spool.lines(after)] == ["naïve", "three"]
    spool.clear()
    assert spool.is_empty
    assert not spool.path.exists()
    assert texts(spool) == []


@pytest.mark.parametrize("torn", [b"tw", b"{", b"\xc3", b"\0\0\0"])
def test_a_torn_last_line_is_cut_off(torn: bytes, tmp_path: Path) -> None:
    path = tmp_path / "spool"
    path.write_bytes(b"one\n" + torn)
    spool = Spool(path)
    assert texts(spool) == ["one"]
    spool.add("two")
    assert path.read_bytes() == b"one\ntwo\n"


def test_a_file_with_nothing_but_a_torn_line_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "spool"
    path.write_bytes(b"on")
    assert Spool(path).is_empty


def test_a_full_disk_leaves_nothing_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = Spool(tmp_path / "spool")
    spool.add("one")
    real = os.pwrite

    def full(handle: int, data: bytes, offset: int) -> int:
        if offset > 4:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(handle, bytes(data)[:2], offset)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(BuildError, match="cannot be noted for later: No space left") as caught:
        spool.add("a longer line")
    assert str(spool.path) in str(caught.value)
    assert spool.path.read_bytes() == b"one\n"
    monkeypatch.undo()
    spool.add("two")
    assert texts(spool) == ["one", "two"]
