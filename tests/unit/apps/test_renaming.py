"""A project whose package or target gets another name: the user's files follow."""

from __future__ import annotations

from pathlib import Path

import pytest

from etdeploy.apps.merge import Conflicts, Written, write_project
from etdeploy.core.errors import UsageError
from tests.unit.apps.test_merge import contents

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
