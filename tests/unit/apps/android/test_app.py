"""What does not fit into an app."""

from __future__ import annotations

from pathlib import Path

import pytest

from etdeploy.apps.android.app import ASSETS, AndroidApp, require_room, require_valid
from etdeploy.core.errors import BuildError


def test_an_id_that_android_refuses_is_refused() -> None:
    with pytest.raises(BuildError, match="'2d'") as caught:
        require_valid(AndroidApp(id="org.2d", name="x"))
    assert "--set app.id=" in str(caught.value.remedy)


def sparse(path: Path, size_bytes: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.truncate(size_bytes)


def test_a_model_of_two_gib_is_refused_with_the_way_beside_the_app(tmp_path: Path) -> None:
    sparse(tmp_path / ASSETS / "model/program.pte", 2**31)
    with pytest.raises(BuildError, match=r"model/program\.pte: 2\.\d GB") as caught:
        require_room(tmp_path)
    assert "--set app.bundled=false" in str(caught.value.remedy)
    assert caught.value.exit_code == 4


def test_files_that_are_too_large_together_are_refused(tmp_path: Path) -> None:
    for name in ("a.bin", "b.bin"):
        sparse(tmp_path / ASSETS / name, 2**30)
    with pytest.raises(BuildError, match="all assets"):
        require_room(tmp_path)


def test_what_fits_passes(tmp_path: Path) -> None:
    require_room(tmp_path)
    sparse(tmp_path / ASSETS / "model/program.pte", 2**31 - 1)
    require_room(tmp_path)
