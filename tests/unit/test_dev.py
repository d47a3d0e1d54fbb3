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


@pytest.mark.parametrize(
    ("cores", "memory_gib", "processes"),
    [(2, 24, ["3"]), (2, 16, ["2"]), (1, 16, []), (8, 8, []), (8, 64, ["10"])],
)
def test_tests_run_side_by_side_where_there_is_room(
    dev: ModuleType,
    cores: int,
    memory_gib: int,
    processes: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    pages = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": memory_gib << 18}
    monkeypatch.setattr(os, "sysconf", lambda name: pages[name])
    assert dev.side_by_side()[1:2] == processes


@pytest.mark.parametrize(
    ("arguments", "extras"),
    [
        ([], []),
        (["--recipe", "xnnpack"], []),
        (["--recipe", "llm-xnnpack", "--model", "m"], ["llm"]),
        (["-r", "llm-xnnpack.yaml"], ["llm"]),
        (["--recipe=openvino"], ["openvino"]),
        (["-ropenvino", "-r", "qnn"], ["openvino", "qnn"]),
        (["--set", "export.backend=qnn"], ["qnn"]),
        (["--recipe", "own/b.yaml"], ["llm"]),
        (["--recipe", "gone.yaml"], []),
    ],
)
def test_what_a_recipe_needs_is_installed(
    dev: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    extras: list[str],
) -> None:
    monkeypatch.setattr(dev, "ROOT", ROOT)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own").mkdir()
    (tmp_path / "own/a.yaml").write_text("model: {hf: org/model}\nextends: a.yaml\n")
    (tmp_path / "own/b.yaml").write_text("extends: 'a.yaml'  # backend: openvino\n")
    assert dev.extras_for(arguments) == extras
