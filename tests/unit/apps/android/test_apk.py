"""How a project's manifest is completed, and when a stage of a build is made again."""

from __future__ import annotations

import os
from pathlib import Path
from xml.etree import ElementTree

import pytest

from etdeploy.apps.android.apk import Stages, complete_manifest
from etdeploy.apps.android.app import AndroidApp
from etdeploy.core.errors import BuildError

APP = AndroidApp(id="org.example.x", name="X")
_ANDROID = "{http://schemas.android.com/apk/res/android}"
TEXT = """\
<manifest xmlns:android="http://schemas.android.com/apk/res/android"
    xmlns:tools="http://schemas.android.com/tools">
  <application tools:targetApi="31">
    <activity android:name=".MainActivity" android:taskAffinity="${applicationId}.task"/>
    <activity android:name="com.other.Activity"/>
    <uses-native-library android:name="libcdsprpc.so" android:required="false"/>
  </application>
</manifest>
"""


def completed(text: str = TEXT, app: AndroidApp = APP) -> ElementTree.Element:
    made = complete_manifest(text, app, "AndroidManifest.xml")
    return ElementTree.fromstring(made)  # noqa: S314 - it was made here


def test_it_gets_what_a_project_keeps_in_its_build_files() -> None:
    root = completed()
    application = root.find("application")
    assert application is not None
    assert root.get("package") == "org.example.x"
    assert application.get(f"{_ANDROID}extractNativeLibs") == "false"
    names = [element.get(f"{_ANDROID}name") for element in application]
    assert names == ["org.example.x.MainActivity", "com.other.Activity", "libcdsprpc.so"]
    assert not [word for word in application.attrib if "tools" in word]
    assert application[0].get(f"{_ANDROID}taskAffinity") == "org.example.x.task"


def test_libraries_that_are_opened_by_path_are_extracted() -> None:
    application = completed(app=APP.model_copy(update={"extracted": True})).find("application")
    assert application is not None
    assert application.get(f"{_ANDROID}extractNativeLibs") == "true"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("<manifest", "this is not XML"),
        ("<manifest/>", "no <application>"),
        ("<resources><application/></resources>", "no <application>"),
        ('<!DOCTYPE x [<!ENTITY a "b">]><manifest/>', "DOCTYPE"),
    ],
)
def test_what_is_no_manifest_is_told_with_its_place(text: str, words: str) -> None:
    with pytest.raises(BuildError, match=words) as caught:
        completed(text)
    assert caught.value.place == "AndroidManifest.xml"


def obtained(work: Path, inputs: dict[str, object], deciding: str = "1") -> list[str]:
    """The stage `s`, and what was made."""
    made: list[str] = []

    def make(folder: Path) -> None:
        made.append("s")
        (folder / "result").write_text("made")

    folder = Stages(work, deciding).obtain("s", inputs, make)
    assert (folder / "result").read_text() == "made"
    return made


def test_other_code_makes_it_again(tmp_path: Path) -> None:
    obtained(tmp_path, {})
    assert obtained(tmp_path, {}, deciding="2") == ["s"]


def test_a_result_that_was_touched_is_made_again(tmp_path: Path) -> None:
    obtained(tmp_path, {})
    (tmp_path / "s/result").unlink()
    assert obtained(tmp_path, {}) == ["s"]
    (tmp_path / "s/result").write_text("others")
    assert obtained(tmp_path, {}) == ["s"]


@pytest.mark.parametrize("text", ["", "[]", '{"key": 1}', '{"files": []}'])
def test_a_key_that_cannot_be_read_is_no_key(tmp_path: Path, text: str) -> None:
    obtained(tmp_path, {})
    (tmp_path / "s/.key").write_text(text)
    assert obtained(tmp_path, {}) == ["s"]


def test_one_that_failed_leaves_the_last_one(tmp_path: Path) -> None:
    obtained(tmp_path, {"a": 1})

    def fail(folder: Path) -> None:
        (folder / "half").touch()
        raise BuildError("no")

    with pytest.raises(BuildError):
        Stages(tmp_path, "1").obtain("s", {"a": 2}, fail)
    assert obtained(tmp_path, {"a": 1}) == []
    assert not list(tmp_path.glob(".s*"))


def test_files_are_known_by_their_content(tmp_path: Path) -> None:
    stages = Stages(tmp_path / "work", "1")
    path = tmp_path / "in/x"
    path.parent.mkdir()
    path.write_text("a")
    first = stages.digests(tmp_path / "in")
    os.utime(path, ns=(1, 1))
    assert stages.digests(tmp_path / "in") == first
    path.write_text("b")
    assert stages.digests(tmp_path / "in") != first
    assert stages.digests(tmp_path / "none") == {}


def test_the_digest_of_a_stage_is_that_of_its_results(tmp_path: Path) -> None:
    obtained(tmp_path, {"a": 1})
    first = Stages(tmp_path, "1").digests(tmp_path / "s")
    obtained(tmp_path, {"a": 2})
    assert Stages(tmp_path, "1").digests(tmp_path / "s") == first


def test_a_file_that_is_absent_is_told(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="cannot be read"):
        Stages(tmp_path, "1").digest(tmp_path / "none")
