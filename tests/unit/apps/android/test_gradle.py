"""A build without Gradle reads plain values of build.gradle.kts, and names what it ignores."""

from __future__ import annotations

from pathlib import Path

import pytest

from etdeploy.apps.android.app import AndroidApp
from etdeploy.apps.android.gradle import (
    GRADLE_FILES,
    MODULE,
    apply_gradle_files,
)
from tests.support.android_app import render

APP = AndroidApp(id="org.example.tiny", name="Tiny")


class Gradle:
    """The Gradle files of a project, as they are generated and as a user edits them."""

    def __init__(self, folder: Path) -> None:
        self.project = render(folder, "inference")
        self.generated = {path: (folder / path).read_text() for path in GRADLE_FILES}

    def edit(self, old: str, new: str, path: str = MODULE) -> None:
        text = (self.project / path).read_text()
        assert old in text
        (self.project / path).write_text(text.replace(old, new, 1))

    def apply(self) -> tuple[AndroidApp, tuple[str, ...]]:
        return apply_gradle_files(self.project, APP, self.generated)

    def line(self, words: str, path: str = MODULE) -> str:
        lines = (self.project / path).read_text().splitlines()
        return f"{path}:{next(i for i, line in enumerate(lines, 1) if words in line)}:"


@pytest.fixture
def gradle(tmp_path: Path) -> Gradle:
    return Gradle(tmp_path)


def test_a_generated_project_has_nothing_to_note(gradle: Gradle) -> None:
    assert gradle.apply() == (APP, ())


def test_plain_versions_and_levels_are_read(gradle: Gradle) -> None:
    gradle.edit("minSdk = 23", "minSdk=29 // as our other apps\n")
    gradle.edit("targetSdk = 36", "targetSdk = 35")
    gradle.edit("compileSdk = 36", "compileSdk = 35")
    gradle.edit("versionCode = 1", "versionCode = 1_204")
    gradle.edit('versionName = "1.0"', 'versionName = "2.4-beta // {3}"')
    app, notes = gradle.apply()
    assert notes == ()
    assert app == AndroidApp(
        id=APP.id, name=APP.name, min_sdk=29, target_sdk=35, compile_sdk=35, version_code=1204,
        version_name="2.4-beta // {3}",
    )  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "versionCode = gitCount()",
        'versionName = "1.${count}"',
        'versionCode = "7"',
        "versionName = 7",
        "versionCode = 99999999999",
        "minSdk = libs.versions.minSdk.get().toInt()",
    ],
)
def test_what_is_no_plain_value_is_ignored_with_its_line(gradle: Gradle, text: str) -> None:
    old = 'versionName = "1.0"' if text.startswith("versionName") else "versionCode = 1"
    gradle.edit("minSdk = 23" if text.startswith("minSdk") else old, text)
    app, notes = gradle.apply()
    assert app == APP
    assert notes[0].startswith(gradle.line(text))
    assert text in notes[0]
    assert "--set app.build=gradle" in notes[-1]


def test_dependencies_and_whatever_else_is_new_are_ignored_with_their_lines(
    gradle: Gradle,
) -> None:
    okio = 'implementation("com.squareup.okio:okio:3.9.0")'
    gradle.edit("dependencies {", f"dependencies {{\n    {okio}")
    gradle.edit("\n    buildTypes {", '\n    flavorDimensions += "kind"\n    buildTypes {')
    gradle.edit("[plugins]", 'gson = "com.google.code.gson:gson:2"\n\n[plugins]', GRADLE_FILES[2])
    _, notes = gradle.apply()
    kind, dependency, gson, _ = notes
    assert kind.startswith(gradle.line("flavorDimensions"))
    assert dependency.startswith(gradle.line("okio"))
    assert okio in dependency
    assert gson.startswith(gradle.line("gson", GRADLE_FILES[2]))


def test_a_value_in_another_block_is_not_the_apps(gradle: Gradle) -> None:
    gradle.edit("buildTypes {", "buildTypes {\n        debug { versionCode = 5 }")
    app, notes = gradle.apply()
    assert app.version_code == 1
    assert "versionCode = 5" in notes[0]


def test_what_a_build_for_debugging_does_not_use_is_not_noted(gradle: Gradle) -> None:
    gradle.edit("isMinifyEnabled = true", "isMinifyEnabled = false")
    gradle.edit("dependencies {", 'dependencies {\n    testImplementation("junit:junit:4.13.2")')
    runner = 'testInstrumentationRunner = "androidx.test.runner.AndroidJUnitRunner"'
    gradle.edit(runner, "")
    gradle.edit("dependencies {", "/* all that\n   it needs */ dependencies {  // and {")
    assert gradle.apply() == (APP, ())


def test_removed_lines_and_files_are_noted_since_they_still_count(gradle: Gradle) -> None:
    gradle.edit("implementation(libs.executorch.android)", "")
    (gradle.project / "settings.gradle.kts").unlink()
    _, (removed, gone, _) = gradle.apply()
    assert MODULE in removed
    assert "implementation(libs.executorch.android)" in removed
    assert "settings.gradle.kts" in gone


def test_many_changes_are_counted(gradle: Gradle) -> None:
    lines = "".join(f'    implementation("a:b{i}:1")\n' for i in range(20))
    gradle.edit("dependencies {\n", f"dependencies {{\n{lines}")
    _, notes = gradle.apply()
    assert len(notes) == 10
    assert notes[8].startswith("12 ")
