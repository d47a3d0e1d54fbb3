"""Where the files of an APK are, and what is said where they are not."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest

from etdeploy.apps.android.app import ApkParts
from etdeploy.apps.android.archive import (
    PAGE_BYTES,
    ApkEntry,
    apk_parts,
    apk_problems,
    asset_entry,
    entries_of,
    least_load_alignment,
    library_entry,
    placed_files,
    require_sound,
    write_archive,
)
from etdeploy.core.errors import BuildError
from tests.support.apk_sdk import elf


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
    assert not files["assets/model/model.json"].stored
    assert list(apk_problems(tmp_path / "x.apk")) == []
    require_sound(tmp_path / "x.apk")


def test_the_bytes_are_those_at_their_place(tmp_path: Path) -> None:
    path = apk(tmp_path)
    placed = {f.name: f for f in placed_files(path)}["assets/model/program.pte"]
    content = path.read_bytes()[placed.offset :][: 7 * 1000]
    assert content == b"program" * 1000
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None


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
    assert [entry.aligned for entry in entries_of(path)] == [4, 0]


def test_its_parts_add_up(tmp_path: Path) -> None:
    path = apk(tmp_path)
    parts = apk_parts(path)
    assert sum(parts.model_dump().values()) == path.stat().st_size
    assert 7000 < parts.model_bytes < 7000 + PAGE_BYTES + 200
    assert 256 <= parts.native_bytes < 256 + PAGE_BYTES
    assert parts.other_bytes < 1000
    assert isinstance(parts, ApkParts)


def test_what_is_at_another_place_is_told(tmp_path: Path) -> None:
    path = tmp_path / "plain.apk"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("lib/arm64-v8a/libx.so", elf())
        archive.writestr("assets/model/program.pte", b"x" * 99, zipfile.ZIP_DEFLATED)
    problems = list(apk_problems(path))
    assert "lib/arm64-v8a/libx.so begins at 51, which is no multiple of 16384" in problems
    assert "assets/model/program.pte is compressed, so it cannot be mapped" in problems
    with pytest.raises(BuildError, match="does not do") as caught:
        require_sound(path)
    assert caught.value.place == str(path)


def test_a_library_for_smaller_pages_is_told_and_does_not_stop_a_build(tmp_path: Path) -> None:
    path = apk(tmp_path, alignment=4096)
    assert list(apk_problems(path)) == [
        "lib/arm64-v8a/libx.so is linked for pages of 4096 bytes: on a phone with pages of 16384 "
        "it is not loaded"
    ]
    require_sound(path)


def test_what_is_no_archive_is_told(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="cannot be read"):
        require_sound(file(tmp_path, "x.apk", b"no archive"))


@pytest.mark.parametrize("content", [b"", b"text" * 99, b"\x7fELF\x01\x01" + bytes(99)])
def test_what_is_no_library_of_64_bits_has_no_alignment(content: bytes) -> None:
    assert least_load_alignment(io.BytesIO(content)) is None


def test_the_least_alignment_counts() -> None:
    assert least_load_alignment(io.BytesIO(elf(65536))) == 65536


def test_an_app_that_android_could_not_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 500)
    content = file(tmp_path, "x", b"x" * 400)
    entries = [ApkEntry("a", content, 4), ApkEntry("b", content, 4), ApkEntry("c", content, 4)]
    with pytest.raises(BuildError, match="larger than 2 GiB") as caught:
        write_archive(tmp_path / "x.apk", entries)
    assert "--set app.bundled=false" in str(caught.value.remedy)
