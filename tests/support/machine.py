"""Machines with just the programs that a test gives them."""

from __future__ import annotations

from pathlib import Path

import pytest

_SAYS = {
    "cmake": "cmake version 3.31.6",
    "ninja": "1.13.2",
    "c++": "",
    "aarch64-linux-gnu-g++": "",
    "git": "",
}


def bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty PATH, a Python with nothing beside it, and no package of ours; gives the PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("CXX", "VULKAN_SDK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sys.executable", str(tmp_path / "python" / "python3"))
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    monkeypatch.setattr("etdeploy.runner.missing.find_spec", lambda _: None)
    return folder


def equip(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Adds cmake, ninja, git, compilers and the Python packages."""
    for name, says in _SAYS.items():
        path = folder / name
        path.write_text(f"#!/bin/sh\necho '{says}'\n")
        path.chmod(0o755)
    monkeypatch.setattr("etdeploy.runner.missing.find_spec", lambda name: name)
