"""A built app as an .ipa."""

from __future__ import annotations

import os
import stat
import zipfile
from pathlib import Path

import pytest

from etdeploy.apps.ios.platform import write_ipa
from etdeploy.core.errors import BuildError


def _app(folder: Path) -> Path:
    app = folder / "Net.app"
    (app / "Model").mkdir(parents=True)
    (app / "Info.plist").write_bytes(b"plist")
    (app / "Net").write_bytes(b"binary")
    (app / "Net").chmod(0o755)
    (app / "Model/program.pte").write_bytes(b"0" * 1000)
    (app / "link").symlink_to("Model")
    return app


def test_the_app_is_in_payload_with_its_modes(tmp_path: Path) -> None:
    write_ipa(_app(tmp_path), tmp_path / "Net.ipa")
    with zipfile.ZipFile(tmp_path / "Net.ipa") as archive:
        found = {info.filename: info for info in archive.infolist()}
        assert list(found) == [
            "Payload/Net.app/Info.plist",
            "Payload/Net.app/Model/program.pte",
            "Payload/Net.app/Net",
            "Payload/Net.app/link",
        ]
        assert archive.read("Payload/Net.app/Model/program.pte") == b"0" * 1000
        assert archive.read("Payload/Net.app/link") == b"Model"
    modes = [info.external_attr >> 16 for info in found.values()]
    assert [stat.S_IMODE(mode) for mode in modes] == [0o644, 0o644, 0o755, 0o777]
    assert stat.S_ISLNK(modes[-1])


def test_equal_apps_give_equal_archives(tmp_path: Path) -> None:
    archives = []
    for i in (1, 2):
        app = _app(tmp_path / str(i))
        os.utime(app / "Net", (i * 10**9, i * 10**9))
        write_ipa(app, tmp_path / f"{i}.ipa")
        archives.append((tmp_path / f"{i}.ipa").read_bytes())
    assert archives[0] == archives[1]


def test_what_is_no_app_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="not a built app"):
        write_ipa(tmp_path, tmp_path / "x.ipa")
    assert not (tmp_path / "x.ipa").exists()
