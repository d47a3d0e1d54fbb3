"""A full disk is named, with what helps on that one."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace

import pytest

from etdeploy.core.files.basic import (
    annotate_oserror,
    disk_full_error,
    find_disk_full,
    find_disk_full_in_output,
    new_folder,
    require_room,
    write_atomic,
)


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
    assert find_disk_full(full) is full
    assert (
        find_disk_full(raised(RuntimeError("step failed"), raised(ValueError("x"), full))) is full
    )
    assert find_disk_full(raised(RuntimeError("step failed"), OSError(errno.EIO, "broken"))) is None


def test_the_error_gets_the_name_of_the_file() -> None:
    with pytest.raises(OSError, match="/disk/file"), annotate_oserror(Path("/disk/file")):
        raise no_space()
    with pytest.raises(OSError, match="/disk/other"), annotate_oserror(Path("/disk/file")):
        raise no_space("/disk/other")
    with pytest.raises(OSError, match="broken") as caught, annotate_oserror(Path("/disk/file")):
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
    told = str(disk_full_error(no_space(tmp_path / place if place else None), tmp_path / "cache"))
    assert remedy in told
    assert ("ETDEPLOY_CACHE_DIR" in told) == ("ETDEPLOY_CACHE_DIR" in remedy), "and for no other"
    assert "etdeploy clean" in told, "all of it is on one disk here"
    if place:
        assert told.startswith(f"{tmp_path / place}: No space")


def test_a_cache_on_another_disk_is_not_blamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "etdeploy.core.files.basic._device", lambda path: 1 if "cache" in str(path) else 2
    )
    told = str(disk_full_error(no_space("/mnt/out/x"), tmp_path / "cache"))
    assert "etdeploy clean" not in told


def test_used_up_inodes_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.statvfs", lambda _path: SimpleNamespace(f_files=10, f_favail=0))
    monkeypatch.setattr("shutil.disk_usage", lambda _path: SimpleNamespace(total=1, free=1))
    told = str(disk_full_error(no_space(tmp_path / "x"), tmp_path))
    assert "(inodes)" in told


@pytest.mark.parametrize(
    ("free_bytes", "files", "free_files", "enough"),
    [(2000, 0, 0, True), (2000, 9, 5, True), (2000, 9, 4, False), (999, 9, 9, False)],
)
def test_a_disk_that_is_nearly_full_is_full(
    monkeypatch: pytest.MonkeyPatch, free_bytes: int, files: int, free_files: int, enough: bool
) -> None:
    told = SimpleNamespace(f_bavail=free_bytes, f_frsize=1, f_files=files, f_favail=free_files)
    monkeypatch.setattr("os.statvfs", lambda _path: told)
    if enough:
        require_room(Path("/disk"), 1000, 5)
    else:
        with pytest.raises(OSError, match="'/disk'"):
            require_room(Path("/disk"), 1000, 5)


@pytest.mark.parametrize(
    ("output", "place"),
    [
        ("OSError: [Errno 28] No space left on device: '/mnt/a b/x'\n", "/mnt/a b/x"),
        ("cc1plus: fatal error: No space left on device\ncompilation terminated", "/small"),
        ("OSError: [Errno 122] Disk quota exceeded\n", "/small"),
        ("error: expected ';'", None),
    ],
)
def test_what_a_program_wrote_of_a_full_disk(
    monkeypatch: pytest.MonkeyPatch, output: str, place: str | None
) -> None:
    free = {"/large": 9, "/small": 0}
    monkeypatch.setattr("etdeploy.core.files.basic._existing", lambda path: path)
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=free[str(path)]))
    error = find_disk_full_in_output(output, Path("/large"), Path("/small"))
    assert (error.filename if error else None) == place
    assert error is None or find_disk_full(error) is error
