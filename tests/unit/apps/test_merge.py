"""Projects are written into the user's folder: edits stay, and follow new names."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from etdeploy.apps.merge import LIST_FILE, Conflicts, Written, write_project
from etdeploy.core.errors import UsageError
from etdeploy.core.processes import process

# git merges.
pytestmark = pytest.mark.usefixtures("real_processes")

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


LINES = [f"line {n}\n" for n in range(12)]


def changed(**lines: str) -> bytes:
    """The twelve lines with others in their places: `_3="mine"`."""
    return "".join(
        f"{lines[f'_{n}']}\n" if f"_{n}" in lines else line for n, line in enumerate(LINES)
    ).encode()


@pytest.fixture
def edited(tmp_path: Path) -> Path:
    """A project of two texts, in both of which the user changed line 2."""
    target = tmp_path / "MyApp"
    write_project(target, {"a.kt": changed(), "b.kt": changed()}, WHAT)
    for name in ("a.kt", "b.kt"):
        (target / name).write_bytes(changed(_2="mine"))
    return target


BOTH = {"a.kt": changed(_9="new"), "b.kt": changed(_9="new")}
MERGED = {"a.kt": changed(_2="mine", _9="new"), "b.kt": changed(_2="mine", _9="new")}


@pytest.mark.parametrize("conflicts", ["refuse", "keep", "overwrite", "mark"])
def test_changes_of_different_lines_are_merged(edited: Path, conflicts: Conflicts) -> None:
    (edited / "a.kt").chmod(0o700)
    done = write_project(edited, BOTH, WHAT, conflicts)
    assert contents(edited) == MERGED
    assert (done.merged, done.saved, done.kept) == (["a.kt", "b.kt"], [], [])
    assert (edited / "a.kt").stat().st_mode & 0o777 == 0o700
    assert not write_project(edited, BOTH, WHAT).changed


def test_every_later_change_is_merged_with_the_one_before(edited: Path) -> None:
    write_project(edited, BOTH, WHAT)
    write_project(edited, {**BOTH, "a.kt": changed(_6="newer", _9="new")}, WHAT)
    assert contents(edited)["a.kt"] == changed(_2="mine", _6="newer", _9="new")


def test_changes_of_the_same_line_write_nothing_even_where_others_merge(edited: Path) -> None:
    before = {**contents(edited), LIST_FILE: (edited / LIST_FILE).read_bytes()}
    with pytest.raises(UsageError, match=r"a\.kt \(both changed the same lines\)") as error:
        write_project(edited, {**BOTH, "a.kt": changed(_2="new")}, WHAT)
    assert "b.kt" not in str(error.value)
    assert "--conflicts mark" in str(error.value.remedy)
    assert {**contents(edited), LIST_FILE: (edited / LIST_FILE).read_bytes()} == before


def test_marks_show_both_versions_and_the_users_file_is_saved(edited: Path) -> None:
    now = {**BOTH, "a.kt": changed(_2="new", _9="new")}
    done = write_project(edited, now, WHAT, "mark")
    marked = "<<<<<<< yours\nmine\n=======\nnew\n>>>>>>> generated"
    assert contents(edited) == {
        "a.kt": changed(_2=marked, _9="new"),
        "b.kt": MERGED["b.kt"],
        "yours/a.kt": changed(_2="mine"),
    }
    assert (done.marked, done.saved, done.merged) == (["a.kt"], ["a.kt"], ["b.kt"])


def test_a_file_with_markers_is_not_merged_again(edited: Path) -> None:
    write_project(edited, {**BOTH, "a.kt": changed(_2="new")}, WHAT, "mark")
    before = contents(edited)
    for conflicts in ("refuse", "mark"):
        with pytest.raises(UsageError, match="still has conflict markers"):
            write_project(edited, {**BOTH, "a.kt": changed(_2="newer")}, WHAT, conflicts)
    assert contents(edited) == before
    (edited / "a.kt").write_bytes(changed(_2="mine and new"))
    now = {**BOTH, "a.kt": changed(_2="new", _6="newer")}
    assert write_project(edited, now, WHAT).merged == ["a.kt"]
    assert contents(edited)["a.kt"] == changed(_2="mine and new", _6="newer")


def test_without_git_an_edited_file_is_a_conflict_that_says_so(
    edited: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "which", lambda _: None)
    before = contents(edited)
    with pytest.raises(UsageError, match=r"a\.kt \(git is not installed\)") as error:
        write_project(edited, BOTH, WHAT)
    assert "install git" in str(error.value.remedy)
    assert contents(edited) == before
    done = write_project(edited, BOTH, WHAT, "keep")
    assert (done.kept, contents(edited)) == (["a.kt", "b.kt"], before)
    assert done.notes == ["git is not installed, so nothing was merged: a.kt, b.kt."]


def test_a_project_without_its_earlier_texts_is_not_merged(edited: Path) -> None:
    known = json.loads((edited / LIST_FILE).read_text())
    wrong = {**known["texts"], "b.kt": ["another\n"]}
    for texts in ({}, wrong | {"a.kt": ["another\n"]}):
        (edited / LIST_FILE).write_text(json.dumps({**known, "texts": texts}))
        with pytest.raises(UsageError, match=r"a\.kt \(no earlier text"):
            write_project(edited, BOTH, WHAT)
    del known["texts"]  # as before there was merging
    (edited / LIST_FILE).write_text(json.dumps(known))
    with pytest.raises(UsageError, match=r"b\.kt \(no earlier text"):
        write_project(edited, BOTH, WHAT)


@pytest.mark.parametrize("conflicts", ["refuse", "mark"])
@pytest.mark.parametrize("renames", range(3))
def test_a_stop_loses_no_text_and_the_next_run_completes_it(
    edited: Path, monkeypatch: pytest.MonkeyPatch, conflicts: Conflicts, renames: int
) -> None:
    now = BOTH if conflicts == "refuse" else {**BOTH, "b.kt": changed(_2="new")}
    left = renames
    rename = Path.replace

    def stopped(self: Path, target: Path) -> Path:
        nonlocal left
        if self.parent.name == "content" and Path(target).parent == edited:
            left -= 1
        if left < 0:
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(Path, "replace", stopped)
    try:
        write_project(edited, now, WHAT, conflicts)
    except KeyboardInterrupt:
        assert renames < 2
    monkeypatch.undo()
    for name in ("a.kt", "b.kt"):
        texts = [text for path, text in contents(edited).items() if path.endswith(name)]
        assert any(b"\nmine\n" in text for text in texts)
    assert not list(edited.glob(".etdeploy-*/"))
    if conflicts == "refuse":
        write_project(edited, now, WHAT)
        assert contents(edited) == MERGED


def test_a_link_and_data_are_not_merged(edited: Path, tmp_path: Path) -> None:
    (tmp_path / "outside.kt").write_bytes(changed(_2="mine"))
    (edited / "a.kt").unlink()
    (edited / "a.kt").symlink_to(tmp_path / "outside.kt")
    (edited / "b.kt").write_bytes(b"\xff\0")
    with pytest.raises(UsageError, match=r": a\.kt, b\.kt"):
        write_project(edited, BOTH, WHAT)
    assert (tmp_path / "outside.kt").read_bytes() == changed(_2="mine")


def test_scripts_can_be_started(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"#!/bin/sh\n")
    write_project(tmp_path / "new", {"a": b"#!/bin/sh\n", "b": source, "c": b"no script"}, WHAT)
    modes = [(tmp_path / "new" / name).stat().st_mode & 0o100 for name in "abc"]
    assert modes == [0o100, 0o100, 0]


class _FullDisk:
    """Copies files until the disk is full."""

    def __init__(self, room: int) -> None:
        self.room = room

    def __call__(self, source: Path, target: Path) -> None:
        self.room -= 1
        if self.room < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        target.write_bytes(source.read_bytes())


def _sources(folder: Path, *names: str) -> dict[str, bytes | Path]:
    folder.mkdir()
    for name in names:
        (folder / name).write_bytes(b"new")
    return {name: folder / name for name in names}


def test_a_full_disk_leaves_no_part_of_a_new_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = _sources(tmp_path / "sources", "a", "b")
    monkeypatch.setattr("etdeploy.apps.merge.copy_file", _FullDisk(1))
    with pytest.raises(OSError, match="No space left"):
        write_project(tmp_path / "new", content, WHAT)
    assert not (tmp_path / "new").exists()
    monkeypatch.undo()
    assert write_project(tmp_path / "new", content, WHAT).created == ["a", "b"]


def test_a_full_disk_leaves_an_earlier_project_as_it_was(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "res" / "b.xml").write_bytes(b"mine")
    before = {**contents(folder), LIST_FILE: (folder / LIST_FILE).read_bytes()}
    content = _sources(tmp_path / "sources", "a.kt", "c", "res-b") | {"res/b.xml": b"new"}
    monkeypatch.setattr("etdeploy.apps.merge.copy_file", _FullDisk(2))
    with pytest.raises(OSError, match="No space left"):
        write_project(folder, content, WHAT, "overwrite")
    assert {**contents(folder), LIST_FILE: (folder / LIST_FILE).read_bytes()} == before
    assert not list(folder.glob(".etdeploy-*/"))


def test_a_project_is_completed_after_a_run_that_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = {"a": b"1", "b": b"2"}
    folder = tmp_path / "new"
    rename = Path.replace

    def killed(self: Path, target: Path) -> Path:
        if target == folder / "b":
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        write_project(folder, content, WHAT)
    monkeypatch.undo()
    assert contents(folder) == {"a": b"1"}
    assert write_project(folder, content, WHAT).created == ["b"]
    assert contents(folder) == content


def test_a_large_file_is_copied(folder: Path, tmp_path: Path) -> None:
    source = tmp_path / "program.pte"
    source.write_bytes(b"program")
    write_project(folder, {**FIRST, "model/program.pte": source}, WHAT)
    assert (folder / "model" / "program.pte").read_bytes() == b"program"
    assert source.exists()


KOTLIN, SWIFT = "app/src/main/kotlin/*/MainActivity.kt", "*/App.swift"
CODE = "app/src/main/kotlin"


def android(app_id: str, **texts: str) -> dict[str, bytes]:
    """What is generated for an id; `texts` of activity or layout in another way."""
    package = f"{CODE}/{app_id.replace('.', '/')}"
    activity = texts.get("activity", "class MainActivity")
    return {
        f"{package}/MainActivity.kt": f"package {app_id}\n{activity}\n".encode(),
        f"{package}/tokens/Words.kt": f"package {app_id}.tokens\n".encode(),
        "app/src/main/res/layout/main.xml": f"<{app_id}.View/>{texts.get('layout', '')}".encode(),
        "app/build.gradle.kts": f'namespace = "{app_id}"\n'.encode(),
        "app/src/main/assets/model/program.pte": b"\xff\0",
    }


class App:
    """A project of the id org.example.net."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.write(android("org.example.net"))

    def write(self, content: dict[str, bytes], conflicts: Conflicts = "refuse") -> Written:
        return write_project(self.folder, content, "android app", conflicts, KOTLIN)

    def edit(self, path: str, text: str) -> None:
        (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
        with (self.folder / path).open("a") as file:
            file.write(text)


@pytest.fixture
def app(tmp_path: Path) -> App:
    return App(tmp_path / "MyApp")


ACTIVITY, MOVED = f"{CODE}/org/example/net/MainActivity.kt", f"{CODE}/com/acme/MainActivity.kt"


@pytest.mark.parametrize("new", ["com.acme", "org.example.net.lite", "org.example"])
def test_an_unedited_project_is_that_of_the_new_id(app: App, new: str) -> None:
    app.write(android(new))
    assert contents(app.folder) == android(new)


def test_edited_files_move_with_their_package_and_imports(app: App) -> None:
    app.edit(ACTIVITY, "import org.example.net.R\nimport org.example.network.Http\n")
    app.edit("app/build.gradle.kts", "// mine\n")
    done = app.write(android("com.acme"))
    found = contents(app.folder)
    assert found[MOVED] == (
        b"package com.acme\nclass MainActivity\nimport com.acme.R\n"
        b"import org.example.network.Http\n"
    )
    assert found["app/build.gradle.kts"] == b'namespace = "com.acme"\n// mine\n'
    assert set(found) == set(android("com.acme"))
    assert set(done.kept) == {
        MOVED,
        "app/build.gradle.kts",
    }
    assert MOVED in done.moved
    assert app.write(android("com.acme")).moved == []
    assert contents(app.folder) == found


def test_files_of_the_users_own_move_and_name_the_new_package(app: App) -> None:
    app.edit(f"{CODE}/org/example/net/Extra.kt", "package org.example.net\n")
    app.edit(f"{CODE}/com/mine/Util.kt", "package com.mine\nimport org.example.net.R\n")
    app.edit("app/src/test/java/org/example/net/ATest.java", "package org.example.net;\n")
    app.edit("notes.md", "adb shell am start org.example.net/.MainActivity\n")
    (app.folder / "app/build/classes").mkdir(parents=True)
    app.edit("app/build/classes/kept.txt", "org.example.net")
    app.write(android("com.acme"))
    found = contents(app.folder)
    assert found[f"{CODE}/com/acme/Extra.kt"] == b"package com.acme\n"
    assert found[f"{CODE}/com/mine/Util.kt"] == b"package com.mine\nimport com.acme.R\n"
    assert found["app/src/test/java/com/acme/ATest.java"] == b"package com.acme;\n"
    assert b"org.example.net/" in found["notes.md"]
    assert found["app/build/classes/kept.txt"] == b"org.example.net"
    assert not (app.folder / CODE / "org").exists()


def test_a_file_that_also_changes_otherwise_is_a_conflict_and_nothing_moves(app: App) -> None:
    app.edit(ACTIVITY, "// mine\n")
    before = contents(app.folder)
    now = android("com.acme", activity="class MainActivity : Other")
    with pytest.raises(UsageError, match="com/acme/MainActivity"):
        app.write(now)
    assert contents(app.folder) == before
    assert app.write(now, "keep").kept == [MOVED]
    assert contents(app.folder)[MOVED] == b"package com.acme\nclass MainActivity\n// mine\n"


def test_an_edited_file_that_also_changes_otherwise_is_merged_under_its_new_name(app: App) -> None:
    path = app.folder / ACTIVITY
    path.write_text(f"// mine: org.example.net\n\n\n{path.read_text()}")
    done = app.write(android("com.acme", activity="class MainActivity : Other"))
    assert contents(app.folder)[MOVED] == (
        b"// mine: com.acme\n\n\npackage com.acme\nclass MainActivity : Other\n"
    )
    assert (done.merged, MOVED in done.moved) == ([MOVED], True)
    assert set(contents(app.folder)) == set(android("com.acme"))


def test_what_the_user_moved_already_stays(app: App) -> None:
    (app.folder / ACTIVITY).unlink()
    app.edit(MOVED, "package com.acme\n// mine\n")
    assert MOVED in app.write(android("com.acme")).kept
    assert contents(app.folder)[MOVED] == b"package com.acme\n// mine\n"


def test_an_own_file_at_the_new_place_is_named(app: App) -> None:
    app.edit(MOVED, "mine")
    before = contents(app.folder)
    with pytest.raises(UsageError, match="com/acme/MainActivity") as caught:
        app.write(android("com.acme"))
    assert contents(app.folder) == before
    assert f"rm {app.folder / ACTIVITY}" in str(caught.value.remedy)


def ios(target: str) -> dict[str, bytes]:
    project = f'path = {target};\nname = "Image";\n'
    return {
        f"{target}/App.swift": b"struct SampleApp",
        f"{target}/View.swift": b"Button",
        f"{target}.xcodeproj/project.pbxproj": project.encode(),
    }


def test_the_folder_of_an_ios_target_moves_and_its_swift_stays_as_it_is(tmp_path: Path) -> None:
    write_project(tmp_path, ios("Net"), "ios app", "refuse", SWIFT)
    (tmp_path / "Net/View.swift").write_text('Text("Net")')
    (tmp_path / "Net/Own.swift").write_text("struct Net")
    project = tmp_path / "Net.xcodeproj/project.pbxproj"
    project.write_text(project.read_text() + "TEAM = 1;\n")
    write_project(tmp_path, ios("Dog"), "ios app", "refuse", SWIFT)
    assert contents(tmp_path) == {
        "Dog/App.swift": b"struct SampleApp",
        "Dog/View.swift": b'Text("Net")',
        "Dog/Own.swift": b"struct Net",
        "Dog.xcodeproj/project.pbxproj": b'path = Dog;\nname = "Image";\nTEAM = 1;\n',
    }


def test_a_name_that_is_also_another_word_is_not_guessed(tmp_path: Path) -> None:
    write_project(tmp_path, ios("Image"), "ios app", "refuse", SWIFT)
    project = tmp_path / "Image.xcodeproj/project.pbxproj"
    project.write_text(project.read_text() + "TEAM = 1;\n")
    with pytest.raises(UsageError, match=r"Dog\.xcodeproj/project\.pbxproj"):
        write_project(tmp_path, ios("Dog"), "ios app", "refuse", SWIFT)
