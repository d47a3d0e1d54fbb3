"""The file of a night's events."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from etdeploy.farm.night.outbox import Outbox


def texts(outbox: Outbox) -> list[str]:
    return [line for line, _ in outbox.lines()]


def test_the_next_process_imports_what_is_left(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path / "outbox")
    outbox.append("naïve")
    outbox.append("two")
    outbox.imported = outbox.lines()[0][1]
    outbox.mark_imported()
    again = Outbox(outbox.path)
    assert texts(again) == ["naïve", "two"]
    assert [line for line, _ in again.lines(again.imported)] == ["two"]
    again.imported = again.size
    again.mark_imported()
    assert again.is_imported
    assert Outbox(outbox.path).is_imported
    outbox = Outbox(outbox.path)
    outbox.append("three")
    assert [line for line, _ in outbox.lines(outbox.imported)] == ["three"]
    outbox.restart("four")
    assert texts(Outbox(outbox.path)) == ["four"]
    assert Outbox(outbox.path).is_imported


@pytest.mark.parametrize("torn", [b"tw", b"{", b"\xc3", b"\0\0\0", b'{"imported": 4'])
def test_a_torn_last_line_is_cut_off(torn: bytes, tmp_path: Path) -> None:
    path = tmp_path / "outbox"
    path.write_bytes(b"one\n" + torn)
    outbox = Outbox(path)
    assert texts(outbox) == ["one"]
    outbox.append("two")
    assert path.read_bytes() == b"one\ntwo\n"
    path.write_bytes(torn)
    assert Outbox(path).is_imported


def test_a_full_disk_leaves_nothing_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outbox = Outbox(tmp_path / "outbox")
    outbox.append("one")
    real = os.pwrite

    def full(handle: int, data: bytes, offset: int) -> int:
        if offset > 4:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(handle, bytes(data)[:2], offset)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space left"):
        outbox.append("a longer line")
    assert outbox.path.read_bytes() == b"one\n"
    assert not outbox.is_imported
    monkeypatch.undo()
    outbox.append("two")
    assert texts(outbox) == ["one", "a longer line", "two"]
