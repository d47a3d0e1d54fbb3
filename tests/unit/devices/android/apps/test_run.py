"""The paths that an app gets."""

from __future__ import annotations

import pytest

from etdeploy.devices.android.app_run import fill_option, small_files
from etdeploy.devices.base import AppLaunch, Bundle, BundleFile
from etdeploy.devices.remote.shell import DevicePaths

_APP = AppLaunch(id="org.example.a", archive="app.apk")
_SIZES = {"app.apk": 10, "program.pte": 200 << 20, "request.txt": 5}
_BUNDLE = Bundle(
    files=tuple(
        BundleFile(source=path, path=path, sha256=f"{n}" * 64, size_bytes=size)
        for n, (path, size) in enumerate(_SIZES.items())
    ),
    launch=_APP,
)
_PLACE = DevicePaths("/data/local/tmp")


def test_small_files_are_copied_and_large_ones_read_in_the_store() -> None:
    assert [file.path for file in small_files(_BUNDLE, _APP)] == ["request.txt"]
    copied = {"request.txt"}
    words = ("program={bundle}/program.pte", "request={bundle}/request.txt", "iterations=3")
    assert [fill_option(word, _PLACE, "/r", _BUNDLE, copied) for word in words] == [
        f"program=/data/local/tmp/etdeploy/store/{'1' * 64}",
        "request=/r/files/request.txt",
        "iterations=3",
    ]


@pytest.mark.parametrize("path", ["{bundle}/../../x", "{bundle}", "/a/{bundle}/program.pte"])
def test_a_path_that_is_not_in_the_bundle_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="bundle"):
        fill_option(f"program={path}", _PLACE, "/r", _BUNDLE, set())
