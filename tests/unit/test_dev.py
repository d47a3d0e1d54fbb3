"""The set-up script: what it says before anything is made."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def dev(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, as if it stood in an empty folder."""
    spec = importlib.util.spec_from_file_location("dev", ROOT / "dev.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Its dataclass looks for the module there.
    monkeypatch.setitem(sys.modules, "dev", module)
    spec.loader.exec_module(module)
    (tmp_path / "pyproject.toml").touch()
    for name, path in (("ROOT", tmp_path), ("VENV", tmp_path / ".venv")):
        monkeypatch.setattr(module, name, path)
    monkeypatch.setattr(module, "PYTHON", tmp_path / ".venv/bin/python")
    monkeypatch.setattr(module, "STAMP", tmp_path / ".venv/.etdeploy.json")
    return module


@pytest.mark.parametrize("made", [False, True], ids=["no .venv", "a part of .venv"])
def test_a_folder_that_cannot_be_written_to_is_named(
    dev: ModuleType, made: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if made:
        (tmp_path / ".venv").mkdir()
    # Root may write anywhere but on a read-only file system.
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(dev.SetupError) as raised:
        dev.set_up("export")
    assert str(raised.value).startswith(f"{tmp_path / '.venv' if made else tmp_path} cannot be")
    assert "python3" not in str(raised.value)
