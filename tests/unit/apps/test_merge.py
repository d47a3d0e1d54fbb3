"""Projects are written into the user's folder: edits stay, and follow new names."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from etdeploy.apps.merge import LIST_FILE, Conflicts, Written, write_project
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
