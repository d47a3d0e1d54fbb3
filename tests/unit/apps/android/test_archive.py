"""Where the files of an APK are, how libraries are taken apart, and what tools' failures mean."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest

from etdeploy.apps.android.archive import (
    PAGE_BYTES,
    ApkEntry,
    apk_problems,
    asset_entry,
    least_load_alignment,
    library_entry,
    placed_files,
    read_entries,
    require_sound,
    unpack_libraries,
    write_archive,
)
from etdeploy.apps.android.commands import SDK_TOOL_FAILURES, complaints
from etdeploy.apps.android.tools import Library
from etdeploy.core.errors import BuildError
from etdeploy.core.files.basic import folder_files
from tests.support.apk_sdk import elf, write_aar


def file(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def apk(folder: Path, *, extracted: bool = False, alignment: int = PAGE_BYTES) -> Path:
    library = file(folder, "libx.so", elf(alignment))
    path = folder / "x.apk"
    write_archive(
        path,
        [
            ApkEntry("AndroidManifest.xml", b"manifest" * 10),
            ApkEntry("resources.arsc", b"table" * 7, 4),
            library_entry("arm64-v8a", "libx.so", library, extracted=extracted),
            asset_entry("model/program.pte", file(folder, "p", b"program" * 1000)),
            asset_entry("model/inputs/0.bin", file(folder, "i", b"input" * 9)),
            asset_entry("model/model.json", file(folder, "m", b"{}" * 100)),
        ],
    )
    return path


def test_what_is_mapped_begins_at_a_page_and_is_stored(tmp_path: Path) -> None:
    files = {f.name: f for f in placed_files(apk(tmp_path))}
    for name in ("lib/arm64-v8a/libx.so", "assets/model/program.pte"):
        assert files[name].stored
        assert files[name].offset % PAGE_BYTES == 0
    for name in ("resources.arsc", "assets/model/inputs/0.bin"):
        assert files[name].stored
        assert files[name].offset % 4 == 0
    at = files["assets/model/program.pte"].offset
    assert (tmp_path / "x.apk").read_bytes()[at:].startswith(b"program" * 1000)
    assert not files["assets/model/model.json"].stored
    assert list(apk_problems(tmp_path / "x.apk")) == []
    require_sound(tmp_path / "x.apk")


def test_libraries_that_are_extracted_are_compressed(tmp_path: Path) -> None:
    files = {f.name: f for f in placed_files(apk(tmp_path, extracted=True))}
    assert not files["lib/arm64-v8a/libx.so"].stored
    require_sound(tmp_path / "x.apk")


def test_equal_inputs_give_equal_archives(tmp_path: Path) -> None:
    assert apk(tmp_path).read_bytes() == apk(tmp_path).read_bytes()


def test_of_two_files_with_one_name_the_first_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "x.apk"
    write_archive(path, [ApkEntry("a", b"1"), ApkEntry("a", b"2")])
    with zipfile.ZipFile(path) as archive:
        assert archive.namelist() == ["a"]
        assert archive.read("a") == b"1"


def test_what_a_tool_stored_stays_stored(tmp_path: Path) -> None:
    path = tmp_path / "linked.apk"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("resources.arsc", b"x" * 9)
        archive.writestr("AndroidManifest.xml", b"x" * 9, zipfile.ZIP_DEFLATED)
    assert [entry.aligned for entry in read_entries(path)] == [4, 0]


def test_what_is_at_another_place_is_told(tmp_path: Path) -> None:
    path = tmp_path / "plain.apk"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("lib/arm64-v8a/libx.so", elf())
        archive.writestr("assets/model/program.pte", b"x" * 99, zipfile.ZIP_DEFLATED)
    library, model = apk_problems(path)
    assert all(fact in library for fact in ("lib/arm64-v8a/libx.so", "51", "16384"))
    assert all(fact in model for fact in ("assets/model/program.pte", "compressed"))
    with pytest.raises(BuildError) as caught:
        require_sound(path)
    assert caught.value.place == str(path)
    assert library in caught.value.message


def test_a_library_for_smaller_pages_is_told_and_does_not_stop_a_build(tmp_path: Path) -> None:
    path = apk(tmp_path, alignment=4096)
    [problem] = apk_problems(path)
    assert all(fact in problem for fact in ("lib/arm64-v8a/libx.so", "4096", "16384"))
    require_sound(path)


def test_what_is_no_archive_is_told(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="cannot be read"):
        require_sound(file(tmp_path, "x.apk", b"no archive"))


@pytest.mark.parametrize("content", [b"", b"text" * 99, b"\x7fELF\x01\x01" + bytes(99)])
def test_what_is_no_library_of_64_bits_has_no_alignment(content: bytes) -> None:
    assert least_load_alignment(io.BytesIO(content)) is None


def test_an_app_that_android_could_not_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 500)
    content = file(tmp_path, "x", b"x" * 400)
    entries = [ApkEntry("a", content, 4), ApkEntry("b", content, 4), ApkEntry("c", content, 4)]
    with pytest.raises(BuildError, match="larger than 2 GiB") as caught:
        write_archive(tmp_path / "x.apk", entries)
    assert "--set app.bundled=false" in str(caught.value.remedy)


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
    with pytest.raises(BuildError, match="armeabi-v7a") as caught:
        unpacked(tmp_path, aar, "armeabi-v7a")
    assert "--set app.abis=[arm64-v8a, x86, x86_64]" in str(caught.value.remedy)


@pytest.mark.parametrize("fault", ["resources", "damaged", "no classes.jar"])
def test_an_aar_that_cannot_be_used_is_named(tmp_path: Path, fault: str) -> None:
    others = ("res/values/values.xml",) if fault == "resources" else ()
    aar = write_aar(tmp_path / "x.aar", b"jar", others=others)
    if fault == "damaged":
        aar.write_bytes(b"PK")
    elif fault == "no classes.jar":
        aar.write_bytes(aar.read_bytes().replace(b"classes.jar", b"klasses.jar"))
    with pytest.raises(BuildError, match=rf"{aar}.*{'' if fault == 'damaged' else fault}") as e:
        unpacked(tmp_path, aar)
    assert ("--set app.build=gradle" in str(e.value.remedy)) == (fault == "resources")


def test_what_leads_out_of_its_folder_is_not_written(tmp_path: Path) -> None:
    aar = write_aar(tmp_path / "x.aar", b"jar", others=("jni/../../../evil.so",))
    assert unpacked(tmp_path, aar) == ["lib.jar"]
    assert not list(tmp_path.rglob("evil.so"))


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
