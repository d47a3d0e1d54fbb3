"""A full disk is named, with what helps on that one."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace

import pytest

from etdeploy.core.disk import full_disk, naming, no_room_in
from etdeploy.core.files import new_folder, write_atomic


def no_space(name: Path | str | None = None) -> OSError:
    error = OSError(errno.ENOSPC, "No space left on device")
    error.filename = str(name) if name else None
    return error


def raised(error: BaseException, cause: BaseException) -> BaseException:
    try:
        raise error from cause
    except type(error) as caught:
        return caught


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_found_among_the_causes(number: int) -> None:
    full = OSError(number, "full")
    assert no_room_in(full) is full
    assert no_room_in(raised(RuntimeError("step failed"), raised(ValueError("x"), full))) is full
    assert no_room_in(raised(RuntimeError("step failed"), OSError(errno.EIO, "broken"))) is None


def test_the_error_gets_the_name_of_the_file() -> None:
    with pytest.raises(OSError, match="/disk/file"), naming(Path("/disk/file")):
        raise no_space()
    with pytest.raises(OSError, match="/disk/other"), naming(Path("/disk/file")):
        raise no_space("/disk/other")
    with pytest.raises(OSError, match="broken") as caught, naming(Path("/disk/file")):
        raise OSError(errno.EPIPE, "broken")
    assert caught.value.filename is None, "that may be any other file"


def test_what_is_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill() -> None:
        with new_folder(tmp_path / "entry"):
            raise no_space()

    with pytest.raises(OSError, match=f"{tmp_path}/.entry"):
        fill()

    class Full:
        def __enter__(self) -> Full:
            return self

        def __exit__(self, *_error: object) -> None:
            raise no_space()

        def write(self, _data: bytes) -> None: ...

    monkeypatch.setattr("os.fdopen", lambda *_arguments: Full())
    with pytest.raises(OSError, match=f"{tmp_path}/plan.json"):
        write_atomic(tmp_path / "plan.json", "{}")


@pytest.mark.parametrize(
    ("place", "remedy"),
    [
        ("cache/plan.json", "export ETDEPLOY_CACHE_DIR=/path"),
        ("tmp/pip/x.whl", "export TMPDIR=/path"),
        ("out/record.json", "--output FOLDER"),
        (None, "export ETDEPLOY_CACHE_DIR=/path"),
    ],
)
def test_the_remedy_is_for_the_disk_that_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str | None, remedy: str
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    told = str(full_disk(no_space(tmp_path / place if place else None), tmp_path / "cache"))
    assert remedy in told
    words = ("ETDEPLOY_CACHE_DIR", "TMPDIR", "--output")
    assert sum(word in told for word in words) == 1, "and for no other"
    assert "etdeploy clean" in told, "all of it is on one disk here"
    if place:
        assert told.startswith(f"{tmp_path / place}: No space left on device: the file system /")


def test_a_cache_on_another_disk_is_not_blamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("etdeploy.core.disk._device", lambda path: 1 if "cache" in str(path) else 2)
    told = str(full_disk(no_space("/mnt/out/x"), tmp_path / "cache"))
    assert "etdeploy clean" not in told


def test_used_up_inodes_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.statvfs", lambda _path: SimpleNamespace(f_files=10, f_favail=0))
    monkeypatch.setattr("shutil.disk_usage", lambda _path: SimpleNamespace(total=1, free=1))
    told = str(full_disk(no_space(tmp_path / "x"), tmp_path))
    assert "has no room for another file (inode)" in told
