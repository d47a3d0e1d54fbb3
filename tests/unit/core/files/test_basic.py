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
    write_if_changed,
)
from etdeploy.core.hashing import digest_json, sha256_bytes, sha256_file, stat_signature
from etdeploy.core.values import ReasonedChoice


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def test_a_file_is_replaced_and_nothing_else_stays(tmp_path: Path) -> None:
    path = tmp_path / "new" / "value.json"
    write_atomic(path, "old")
    write_atomic(path, b"new")
    assert path.read_text() == "new"
    assert names(path.parent) == ["value.json"]


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


def test_an_equal_content_leaves_the_date(tmp_path: Path) -> None:
    path = tmp_path / "CMakeLists.txt"
    assert write_if_changed(path, "one")
    os.utime(path, (1, 1))
    assert not write_if_changed(path, "one")
    assert path.stat().st_mtime == 1
    assert write_if_changed(path, "two")
    assert path.read_text() == "two"


def test_a_new_folder_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    final = tmp_path / "entry"
    final.mkdir()
    (final / "stale").touch()
    with new_folder(final) as work:
        (work / "fresh").touch()
        assert (final / "stale").exists(), "until the end the old one stays"
    assert folder_files(final) == ["fresh"]
    assert names(tmp_path) == ["entry"]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_folder_that_was_not_finished_is_gone(tmp_path: Path, error: type[BaseException]) -> None:
    def stop_halfway() -> None:
        with new_folder(tmp_path / "entry") as work:
            (work / "half").touch()
            raise error

    with pytest.raises(error):
        stop_halfway()
    assert names(tmp_path) == []


@pytest.mark.parametrize("name", ["../up", "/etc/passwd", "a/../../up", "link/up"])
def test_what_leads_out_of_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path)
    with pytest.raises(ValueError, match="leads out of"):
        inside(folder, name)


def test_digests(tmp_path: Path) -> None:
    content = b"x" * 3_000_000
    (tmp_path / "f").write_bytes(content)
    assert sha256_file(tmp_path / "f") == sha256_bytes(content)
    # The test vector of FIPS 180-4 for "abc".
    assert sha256_bytes(b"abc").startswith("ba7816bf8f01cfea414140de5dae2223")
    assert digest_json({"a": 1, "b": [2]}) == digest_json({"b": [2], "a": 1})
    assert digest_json({"a": 1}) != digest_json({"a": "1"})


def test_a_stamp_changes_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text("one")
    before = stat_signature(path)
    assert stat_signature(path) == before
    write_atomic(path, "two")
    assert stat_signature(path) != before


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


def test_a_regular_file_is_opened(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"content")
    (tmp_path / "link").symlink_to("f")
    assert not_regular(tmp_path / "link") is None
    with open_regular(tmp_path / "link") as stream:
        assert stream.read() == b"content"
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "gone")


def test_a_value_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    value = ReasonedChoice(name="x", reason="y")
    path = tmp_path / "value.json"
    assert ReasonedChoice.load_or_none(path) is None
    value.save(path)
    assert ReasonedChoice.load_or_none(path) == value
    for text in ('{"name": "x"}', '{"name": "x", "reason": "y", "new": 1}', '{"name"', "[]", ""):
        path.write_text(text)
        assert ReasonedChoice.load_or_none(path) is None
