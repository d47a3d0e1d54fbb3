"""Bundles on this machine: what is said when they cannot be laid out, and what makes room."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from etdeploy.core.errors import DeviceError
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
