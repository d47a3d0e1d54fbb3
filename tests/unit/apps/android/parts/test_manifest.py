"""How a project's manifest is completed."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from etdeploy.apps.android.apk import completed_manifest
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
    made = completed_manifest(text, app, "AndroidManifest.xml")
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
        ('<!DOCTYPE x [<!ENTITY a "b">]><manifest/>', "no document type"),
    ],
)
def test_what_is_no_manifest_is_told_with_its_place(text: str, words: str) -> None:
    with pytest.raises(BuildError, match=words) as caught:
        completed(text)
    assert caught.value.place == "AndroidManifest.xml"
