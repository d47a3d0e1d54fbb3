from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from etdeploy.core.errors import UsageError
from etdeploy.core.files.basic import folder_files
from etdeploy.farm.engine.transfer import pack, safe_relative, unpack


def test_what_was_packed_is_unpacked(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "logs").mkdir(parents=True)
    (source / "record.json").write_text("{}")
    (source / "logs" / "run.txt").write_text("run")
    (source / "link").symlink_to("/etc/passwd")
    pack(source, tmp_path / "a.tar.gz")
    unpack(tmp_path / "a.tar.gz", tmp_path / "target")
    assert folder_files(tmp_path / "target") == ["logs/run.txt", "record.json"]
    assert (tmp_path / "target" / "logs" / "run.txt").read_text() == "run"


@pytest.mark.parametrize("name", ["../evil", "/tmp/evil", "a/../../evil", ".", ""])
def test_no_member_leaves_the_folder(name: str, tmp_path: Path) -> None:
    _write(tmp_path / "a.tar.gz", _file("good", b"x"), _file(name, b"x"))
    with pytest.raises(UsageError, match="leads out of its folder"):
        unpack(tmp_path / "a.tar.gz", tmp_path / "deep" / "target")
    assert folder_files(tmp_path) == ["a.tar.gz"]


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
def test_only_files_are_unpacked(kind: bytes, tmp_path: Path) -> None:
    member = tarfile.TarInfo("x")
    member.type, member.linkname = kind, "/etc/passwd"
    _write(tmp_path / "a.tar.gz", (member, b""))
    with pytest.raises(UsageError, match="is no file"):
        unpack(tmp_path / "a.tar.gz", tmp_path / "target")
    assert not (tmp_path / "target").exists()


def test_what_is_too_large_or_cut_leaves_nothing(tmp_path: Path) -> None:
    archive = tmp_path / "a.tar.gz"
    _write(archive, _file("x", bytes(10_000)))
    with pytest.raises(UsageError, match="more than 9999 bytes"):
        unpack(archive, tmp_path / "target", limit_bytes=9999)
    archive.write_bytes(archive.read_bytes()[:-20])
    with pytest.raises(UsageError, match="damaged"):
        unpack(archive, tmp_path / "target")
    archive.write_bytes(b"no archive")
    with pytest.raises(UsageError, match="damaged"):
        unpack(archive, tmp_path / "target")
    assert folder_files(tmp_path) == ["a.tar.gz"]


def test_a_path_with_a_null_is_refused() -> None:
    with pytest.raises(UsageError):
        safe_relative("a\0b")


def _file(name: str, data: bytes) -> tuple[tarfile.TarInfo, bytes]:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    return member, data


def _write(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> None:
    with tarfile.open(path, "w:gz") as tar:
        for member, data in members:
            tar.addfile(member, io.BytesIO(data))
