"""Bundles on this machine: what is said when they cannot be laid out, and what makes room."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from etdeploy.core import cancel
from etdeploy.core.errors import DeviceError, Interrupted
from etdeploy.devices.local.store import LocalStore
from tests.support.bundles import make_bundle


def silent(text: str, fraction: float | None = None) -> None:
    assert text
    assert fraction is None or 0 <= fraction <= 1


def test_a_store_that_cannot_be_made_is_told_with_a_command_that_works(tmp_path: Path) -> None:
    (tmp_path / "it's mine").mkdir()
    (tmp_path / "it's mine" / "file").write_bytes(b"x")
    bundle = make_bundle({"file": tmp_path / "it's mine" / "file"})
    with pytest.raises(DeviceError) as caught:
        LocalStore(tmp_path / "it's mine" / "file" / "bundles").push(bundle, silent)
    words = shlex.split(str(caught.value.remedy).splitlines()[-1])
    assert words == ["df", "-h", str(tmp_path / "it's mine"), "&&", "ls", "-ld",
                     str(tmp_path / "it's mine")]  # fmt: skip


def test_a_push_stops_within_a_large_file_and_leaves_nothing_of_it(tmp_path: Path) -> None:
    source, store = tmp_path / "large", tmp_path / "bundles"
    source.write_bytes(bytes(3 << 20))
    bundle = make_bundle({"large": source})

    def stopped(text: str, fraction: float | None = None) -> None:
        cancel.request()

    with cancel.trapped_signals(), pytest.raises(Interrupted):
        LocalStore(store).push(bundle, stopped)
    assert not [path for path in store.rglob("*") if path.is_file()]
    report = LocalStore(store).push(bundle, silent)
    assert (report.pushed_files, report.pushed_bytes) == (1, 3 << 20)
    assert (LocalStore(store).bundle_folder(bundle) / "large").read_bytes() == source.read_bytes()


def test_a_file_that_changed_since_it_was_listed_is_not_copied(tmp_path: Path) -> None:
    source, store = tmp_path / "file", tmp_path / "bundles"
    source.write_bytes(b"old")
    bundle = make_bundle({"file": source})
    source.write_bytes(b"new")
    with pytest.raises(DeviceError, match="changed meanwhile"):
        LocalStore(store).push(bundle, silent)
    assert not [path for path in store.rglob("*") if path.is_file()]
