"""Files are written whole or not at all, and stay inside their folder."""

from __future__ import annotations

import os
import re
import stat as stat_mode
from collections.abc import Callable
from pathlib import Path

import pytest

from etdeploy.core.files.basic import (
    folder_files,
    inside,
    new_folder,
    not_regular,
    open_regular,
    write_atomic,
)
from etdeploy.core.hashing import digest_json, sha256_file


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def test_a_write_that_fails_keeps_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "value.json"
    write_atomic(path, "old")

    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space"):
        write_atomic(path, "new")
    assert path.read_text() == "old"
    assert names(tmp_path) == ["value.json"]


def test_new_files_have_the_mode_that_the_umask_leaves(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_atomic(tmp_path / "a", "")
    finally:
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("name", ["../up", "/etc/passwd", "a/../../up", "link/up"])
def test_what_leads_out_of_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path)
    with pytest.raises(ValueError, match="leads out of"):
        inside(folder, name)


def test_a_digest_does_not_depend_on_the_order_of_keys() -> None:
    assert digest_json({"a": 1, "b": [2]}) == digest_json({"b": [2], "a": 1})
    assert digest_json({"a": 1}) != digest_json({"a": "1"})


def test_an_old_folder_stays_when_the_new_one_cannot_take_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    final = tmp_path / "entry"
    final.mkdir()
    (final / "old").touch()
    rename = Path.rename

    def fail(self: Path, target: Path) -> Path:
        if (self / "fresh").exists():
            raise OSError(5, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail)

    def replace() -> None:
        with new_folder(final) as work:
            (work / "fresh").touch()

    with pytest.raises(OSError, match="Input/output"):
        replace()
    assert folder_files(final) == ["old"]
    assert names(tmp_path) == ["entry"]


@pytest.mark.parametrize("make", ["link", "file"])
def test_a_link_or_a_file_in_the_place_of_a_folder_is_replaced_itself(
    tmp_path: Path, make: str
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "mine").touch()
    final = tmp_path / "entry"
    final.symlink_to(elsewhere) if make == "link" else final.touch()
    with new_folder(final) as work:
        (work / "fresh").touch()
    assert not final.is_symlink()
    assert folder_files(final) == ["fresh"]
    assert (elsewhere / "mine").exists()


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (os.mkfifo, "a FIFO (named pipe)"),
        (Path.mkdir, "a folder"),
        (lambda path: path.symlink_to("/dev/zero"), "a device"),
        (lambda path: os.mknod(path, stat_mode.S_IFSOCK | 0o600), "a socket"),
    ],
)
def test_only_regular_files_are_read_and_nothing_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], object], what: str
) -> None:
    monkeypatch.chdir(tmp_path)
    path = Path("f")
    make(path)
    assert not_regular(path) == what
    for read in (open_regular, sha256_file):
        with pytest.raises(OSError, match=re.escape(what)):
            read(path)


def test_a_file_that_is_swapped_for_a_pipe_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "f"
    path.touch()
    regular = path.stat()
    path.unlink()
    os.mkfifo(path)
    monkeypatch.setattr(Path, "stat", lambda _path: regular)
    with pytest.raises(OSError, match="this is a FIFO"):
        open_regular(path)
