"""The cache folder is looked at before anything starts, and is never somebody else's folder."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from etdeploy.cache.folder import TAG, is_marked, limit_bytes, prepare_cache, require_ours
from etdeploy.cache.workspace import Workspace
from etdeploy.core.errors import BuildError, UsageError


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("name", ["cache", "new/deep/cache"])
def test_a_new_folder_is_made_and_marked(tmp_path: Path, name: str) -> None:
    root = tmp_path / name
    prepare_cache(root)
    prepare_cache(root)
    assert names(root) == [TAG, "locks"]
    assert is_marked(root)
    # The first line is what tools for backups look for.
    assert "8a477f597d28d172789f0" in (root / TAG).read_text().splitlines()[0]
    require_ours(root)


@pytest.mark.parametrize("parts", [["locks", "programs", "state"], ["logs"]])
def test_a_cache_without_the_mark_is_taken(tmp_path: Path, parts: list[str]) -> None:
    for name in parts:
        (tmp_path / name).mkdir()
    require_ours(tmp_path)
    prepare_cache(tmp_path)
    assert is_marked(tmp_path)


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ([".bashrc", "thesis"], "(.bashrc, thesis)"),
        (["locks", "sources", "thesis"], "(thesis)"),
        (["builds", "sources"], "(builds, sources)"),
        (["a", "b", "c", "d"], "(a, b, c, ...)"),
        ([TAG], f"({TAG})"),
    ],
)
def test_a_folder_of_somebody_else_is_refused(tmp_path: Path, found: list[str], told: str) -> None:
    for name in found:
        (tmp_path / name).touch()
    for check in (prepare_cache, require_ours):
        with pytest.raises(UsageError) as caught:
            check(tmp_path)
        assert told in str(caught.value)
        assert "export ETDEPLOY_CACHE_DIR=" in str(caught.value)
    assert names(tmp_path) == sorted(found)


def test_the_root_of_the_file_system_is_refused() -> None:
    with pytest.raises(UsageError, match="/"):
        prepare_cache(Path("/"))


@pytest.mark.parametrize("place", ["file", "file/cache", "loop"])
def test_a_place_that_cannot_be_a_folder_is_told_with_what_to_do(
    tmp_path: Path, place: str
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(UsageError) as caught:
        prepare_cache(tmp_path / place)
    assert str(caught.value).startswith(f"{tmp_path}/{place}: ")
    assert "export ETDEPLOY_CACHE_DIR=" in str(caught.value)


def test_a_part_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare_cache(tmp_path)
    (tmp_path / "programs").mkdir()
    monkeypatch.setattr(os, "access", lambda path, _mode: path.name != "programs")
    with pytest.raises(UsageError, match=rf"it is not writable \({tmp_path}/programs\)"):
        prepare_cache(tmp_path)


def test_a_full_disk_is_told_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_arguments: object, **_options: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "cache"))

    monkeypatch.setattr(Path, "mkdir", full)
    with pytest.raises(BuildError, match="No space left on device"):
        prepare_cache(tmp_path / "cache")


@pytest.mark.parametrize("value", ["~nobody-has-this-name/x", "a\0b"])
def test_a_variable_that_names_no_folder(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setattr(os.environ, "get", lambda _name: value)
    with pytest.raises(UsageError, match="this is not a folder"):
        Workspace.default()


@pytest.mark.parametrize(
    ("value", "limit"),
    [
        (None, 20_000_000_000),
        ("", 20_000_000_000),
        ("0", None),
        ("None", None),
        ("5 GB", 5 * 10**9),
    ],
)
def test_the_bound_of_the_cache(
    monkeypatch: pytest.MonkeyPatch, value: str | None, limit: int | None
) -> None:
    monkeypatch.delenv("ETDEPLOY_CACHE_MAX", raising=False)
    if value is not None:
        monkeypatch.setenv("ETDEPLOY_CACHE_MAX", value)
    assert limit_bytes() == limit


def test_a_bound_that_is_no_size_is_told_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ETDEPLOY_CACHE_MAX", "much")
    with pytest.raises(UsageError, match="ETDEPLOY_CACHE_MAX: 'much'"):
        Workspace.opened()
