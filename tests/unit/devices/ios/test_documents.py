"""What a push has to do."""

from __future__ import annotations

import pytest

from etdeploy.devices.base import AppLaunch, Bundle, BundleFile, ProcessLaunch
from etdeploy.devices.ios.apps import (
    Marker,
    PhoneFile,
    find_archive,
    parse_marker,
    work_for,
)

APP = AppLaunch(id="org.example.convnet", archive="app.ipa")
PATH = "/private/var/containers/Bundle/Application/1/ConvNet.app"


def file(path: str, digit: str) -> BundleFile:
    return BundleFile(source=f"/{path}", path=path, sha256=digit * 64, size_bytes=10)


IPA, PROGRAM, INPUT = file("app.ipa", "a"), file("program.pte", "b"), file("inputs/0.bin", "c")
BUNDLE = Bundle(files=(IPA, PROGRAM, INPUT), launch=APP)


def marker(*files: BundleFile, path: str | None = PATH, archive: BundleFile = IPA) -> Marker:
    kept = {f.path: PhoneFile(sha256=f.sha256, size_bytes=f.size_bytes) for f in files}
    return Marker(archive_sha256=archive.sha256, installed_path=path, files=kept)


def test_a_changed_file_is_sent_and_one_of_earlier_is_removed() -> None:
    there = marker(file("program.pte", "d"), INPUT, file("old.bin", "e"))
    work = work_for(BUNDLE, there, PATH)
    assert work.send == (PROGRAM,)
    assert set(work.keep) == {"inputs/0.bin"}
    assert work.stale == ("old.bin",)
    assert work.archive is None
    other = marker(PROGRAM, INPUT, archive=file("app.ipa", "d"))
    for there, path in ((marker(PROGRAM, INPUT), PATH.replace("/1/", "/2/")), (other, PATH)):
        work = work_for(BUNDLE, there, path)
        assert (work.archive, work.send) == (IPA, ()), "another's app, or an older one"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"files": 3}', '{"schema_version": 2}'])
def test_a_marker_of_another_kind_tells_nothing(text: str) -> None:
    assert parse_marker(text) == Marker()


def test_a_bundle_needs_its_archive() -> None:
    with pytest.raises(ValueError, match=r"lacks app\.ipa"):
        find_archive(Bundle(files=(PROGRAM,), launch=APP))
    with pytest.raises(ValueError, match="does not start an app"):
        find_archive(Bundle(files=(IPA,), launch=ProcessLaunch(argv=("x",))))
