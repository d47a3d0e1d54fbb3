"""How libraries are taken apart, and what is said of those that do not do."""

from __future__ import annotations

from pathlib import Path

import pytest

from etdeploy.apps.android.archive import SDK_TOOL_FAILURES, complaints, unpack_libraries
from etdeploy.apps.android.tools import Library
from etdeploy.core.errors import BuildError
from etdeploy.core.files.basic import folder_files
from tests.support.apk_sdk import write_aar

NATIVE = {"arm64-v8a/liba.so": b"arm", "x86_64/liba.so": b"intel", "x86/liba.so": b"old"}


def unpacked(folder: Path, aar: Path, *abis: str) -> list[str]:
    target = folder / "target"
    target.mkdir()
    unpack_libraries([Library("lib", aar)], abis or ("arm64-v8a",), target)
    return folder_files(target)


def test_classes_rules_and_the_libraries_of_the_apps_abis_are_taken(tmp_path: Path) -> None:
    aar = write_aar(tmp_path / "x.aar", b"jar", NATIVE, rules="-keep class x")
    files = unpacked(tmp_path, aar, "arm64-v8a", "x86_64")
    assert files == ["arm64-v8a/liba.so", "lib.jar", "lib.pro", "x86_64/liba.so"]
    assert (tmp_path / "target/x86_64/liba.so").read_bytes() == b"intel"
    assert (tmp_path / "target/lib.jar").read_bytes() == b"jar"


def test_a_jar_is_a_library_whole(tmp_path: Path) -> None:
    (tmp_path / "x.jar").write_bytes(b"jar")
    assert unpacked(tmp_path, tmp_path / "x.jar") == ["lib.jar"]


def test_an_abi_that_it_lacks_is_told_with_those_that_it_has(tmp_path: Path) -> None:
    aar = write_aar(tmp_path / "x.aar", b"jar", NATIVE)
    with pytest.raises(
        BuildError, match="for arm64-v8a, x86, x86_64 and none for armeabi-v7a"
    ) as e:
        unpacked(tmp_path, aar, "armeabi-v7a")
    assert "--set app.abis=" in str(e.value.remedy)


def test_resources_are_gradles_to_merge(tmp_path: Path) -> None:
    aar = write_aar(tmp_path / "x.aar", b"jar", others=("res/values/values.xml",))
    with pytest.raises(BuildError, match="only Gradle merges"):
        unpacked(tmp_path, aar)


def test_what_leads_out_of_its_folder_is_not_written(tmp_path: Path) -> None:
    aar = write_aar(tmp_path / "x.aar", b"jar", others=("jni/../../../evil.so",))
    assert unpacked(tmp_path, aar) == ["lib.jar"]
    assert not list(tmp_path.rglob("evil.so"))


def test_what_is_damaged_is_told(tmp_path: Path) -> None:
    (tmp_path / "x.aar").write_bytes(b"PK")
    with pytest.raises(BuildError, match="cannot be read as an Android library"):
        unpacked(tmp_path, tmp_path / "x.aar")


def test_one_without_classes_is_no_library(tmp_path: Path) -> None:
    aar = write_aar(tmp_path / "x.aar", b"jar")
    aar.write_bytes(aar.read_bytes().replace(b"classes.jar", b"klasses.jar"))
    with pytest.raises(BuildError, match=r"no classes\.jar"):
        unpacked(tmp_path, aar)


def test_the_first_complaints_of_a_tool_are_told() -> None:
    text = (
        "warning: old\nMain.kt:3:5: error: unresolved reference 'x'\ninfo\nMain.kt:4:1: error: y\n"
    )
    told = "\nMain.kt:3:5: error: unresolved reference 'x'\nMain.kt:4:1: error: y"
    assert complaints(text) == told
    assert complaints("one\ntwo\n\n") == "\ntwo"
    assert complaints("") == ""


@pytest.mark.parametrize(
    ("text", "named", "remedy"),
    [
        ("java.io.IOException: keystore password was incorrect", "/k", "ANDROID_USER_HOME"),
        ('/k entry "androiddebugkey" does not contain a key', "/k", "ANDROID_USER_HOME"),
        ("Missing class a.b.C$D (referenced from: void x.Y.z())", "a.b.C$D", "-dontwarn a.b.C$D"),
        ("java.lang.UnsupportedClassVersionError: com/android/x", "JDK", "JAVA_HOME"),
    ],
)
def test_a_known_failure_has_its_remedy(text: str, named: str, remedy: str) -> None:
    found = SDK_TOOL_FAILURES.diagnose(text, keystore="/k")
    assert found
    assert named in found.cause
    assert remedy in found.remedy
