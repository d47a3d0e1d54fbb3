"""Projects are written into the user's folder, and the user's edits stay."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from etdeploy.apps.merge import LIST_FILE, write_project
from etdeploy.core.errors import UsageError

WHAT = "android app"
FIRST = {"a.kt": b"one", "res/b.xml": b"two", "model/c.bin": b"three"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    target = tmp_path / "MyApp"
    write_project(target, FIRST, WHAT)
    return target


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != LIST_FILE)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def test_the_same_again_changes_nothing(folder: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert not write_project(folder, FIRST, WHAT).changed
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_what_is_generated_in_another_way_is_replaced_and_removed(folder: Path) -> None:
    done = write_project(folder, {"a.kt": b"new", "d.kt": b"four"}, WHAT)
    assert contents(folder) == {"a.kt": b"new", "d.kt": b"four"}
    assert (done.updated, done.created) == (["a.kt"], ["d.kt"])
    assert done.removed == ["model/c.bin", "res/b.xml"]
    assert not (folder / "res").exists()


def test_the_users_edits_files_and_deletions_stay(folder: Path) -> None:
    (folder / "a.kt").write_bytes(b"mine")
    (folder / "res" / "b.xml").unlink()
    (folder / "own.kt").write_bytes(b"own")
    now = {"a.kt": b"one", "res/b.xml": b"in another way", "model/c.bin": b"another"}
    done = write_project(folder, now, WHAT)
    assert contents(folder) == {"a.kt": b"mine", "own.kt": b"own", "model/c.bin": b"another"}
    assert (done.kept, done.deleted) == (["a.kt"], ["res/b.xml"])
    assert write_project(folder, now, WHAT, "overwrite").deleted == ["res/b.xml"]


def test_an_emptied_project_is_written_again(folder: Path) -> None:
    for path in FIRST:
        (folder / path).unlink()
    assert write_project(folder, FIRST, WHAT).deleted == []
    assert contents(folder) == FIRST


def test_an_edited_file_that_is_generated_no_longer_is_a_conflict(folder: Path) -> None:
    (folder / "a.kt").write_bytes(b"mine")
    now = {"res/b.xml": b"two"}
    with pytest.raises(UsageError, match=r"a\.kt"):
        write_project(folder, now, WHAT)
    assert contents(folder) == {**FIRST, "a.kt": b"mine"}
    assert write_project(folder, now, WHAT, "keep").kept == ["a.kt"]
    assert contents(folder) == {"a.kt": b"mine", "res/b.xml": b"two"}


def test_overwrite_moves_an_edited_file_that_is_generated_no_longer(folder: Path) -> None:
    (folder / "a.kt").write_bytes(b"mine")
    done = write_project(folder, {"res/b.xml": b"two"}, WHAT, "overwrite")
    assert (done.saved, done.updated) == (["a.kt"], [])
    assert contents(folder) == {"yours/a.kt": b"mine", "res/b.xml": b"two"}


def test_a_conflict_writes_nothing_and_names_the_files(folder: Path) -> None:
    (folder / "a.kt").write_bytes(b"mine")
    now = {**FIRST, "a.kt": b"new", "res/b.xml": b"new"}
    before = (folder / LIST_FILE).read_bytes()
    with pytest.raises(UsageError, match=r"a\.kt") as error:
        write_project(folder, now, WHAT)
    assert "--conflicts keep" in str(error.value)
    assert contents(folder) == {**FIRST, "a.kt": b"mine"}
    assert (folder / LIST_FILE).read_bytes() == before


def test_keep_takes_the_users_side_once_and_for_all(folder: Path) -> None:
    (folder / "a.kt").write_bytes(b"mine")
    now = {**FIRST, "a.kt": b"new", "res/b.xml": b"new"}
    assert write_project(folder, now, WHAT, "keep").kept == ["a.kt"]
    assert contents(folder) == {**now, "a.kt": b"mine"}
    assert write_project(folder, now, WHAT).kept == ["a.kt"]


def test_overwrite_loses_nothing(folder: Path) -> None:
    (folder / "a.kt").write_bytes(b"mine")
    assert write_project(folder, {**FIRST, "a.kt": b"new"}, WHAT, "overwrite").saved == ["a.kt"]
    (folder / "a.kt").write_bytes(b"mine too")
    write_project(folder, {**FIRST, "a.kt": b"newer"}, WHAT, "overwrite")
    found = contents(folder)
    assert found["a.kt"] == b"newer"
    assert (found["yours/a.kt"], found["yours-1/a.kt"]) == (b"mine", b"mine too")


def test_a_users_file_where_a_new_one_belongs_is_a_conflict(folder: Path) -> None:
    (folder / "d.kt").write_bytes(b"mine")
    with pytest.raises(UsageError, match=r"d\.kt"):
        write_project(folder, {**FIRST, "d.kt": b"four"}, WHAT)


@pytest.mark.parametrize("content", ["not json", "[]", '{"content": 1}', "{}"])
def test_a_folder_of_somebody_else_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / LIST_FILE).write_text(content)
    (tmp_path / "a.kt").write_text("mine")
    with pytest.raises(UsageError, match="android app"):
        write_project(tmp_path, FIRST, WHAT)
    assert (tmp_path / "a.kt").read_text() == "mine"


def test_a_project_of_another_kind_is_refused(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"android app .*ios app"):
        write_project(folder, FIRST, "ios app")


def test_a_file_instead_of_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UsageError, match="not a folder"):
        write_project(tmp_path / "file", FIRST, WHAT)


def test_a_list_that_names_files_elsewhere_removes_nothing_there(
    folder: Path, tmp_path: Path
) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"one")
    known = json.loads((folder / LIST_FILE).read_bytes())
    known["files"]["../victim"] = known["files"]["a.kt"]
    known["files"][str(victim)] = known["files"]["a.kt"]
    (folder / LIST_FILE).write_text(json.dumps(known))
    write_project(folder, {"a.kt": b"one"}, WHAT)
    assert victim.read_bytes() == b"one"


def test_nothing_is_written_through_a_link(folder: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "b.xml").write_bytes(b"two")
    (folder / "res" / "b.xml").unlink()
    (folder / "res").rmdir()
    (folder / "res").symlink_to(elsewhere)
    with pytest.raises(UsageError, match=r"res/b\.xml"):
        write_project(folder, {**FIRST, "res/b.xml": b"new"}, WHAT)
    done = write_project(folder, {**FIRST, "res/b.xml": b"new"}, WHAT, "keep")
    assert done.kept == ["res/b.xml"]
    assert (elsewhere / "b.xml").read_bytes() == b"two"


def test_a_large_file_is_copied(folder: Path, tmp_path: Path) -> None:
    source = tmp_path / "program.pte"
    source.write_bytes(b"program")
    write_project(folder, {**FIRST, "model/program.pte": source}, WHAT)
    assert (folder / "model" / "program.pte").read_bytes() == b"program"
    assert source.exists()
