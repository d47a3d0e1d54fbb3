"""A real export between folders that are called like what exports."""

from __future__ import annotations

from pathlib import Path

import pytest

from etdeploy.cache.workspace import Workspace
from etdeploy.core.values import silent
from etdeploy.export.run import export_program
from etdeploy.program.folder import load_provenance
from tests.support.export import spec_of

pytestmark = pytest.mark.integration

_RAISES = "raise ImportError(__file__)\n"
# As `git clone` leaves it: sources, without the schema that the wheel has beside them.
_CLONE = ("executorch/exir/__init__.py", "executorch/exir/_serialize/__init__.py")
_NAMESAKES = ("torch/__init__.py", "torchao/__init__.py", "numpy/__init__.py", "pkgutil.py")

_MODEL = """
import os
import sys

sys.path.insert(0, os.path.dirname(__file__))
import torch
import helpers

def make():
    return torch.nn.Linear(4, helpers.WIDTH), (torch.ones(1, 4),)
"""


@pytest.mark.parametrize("package_file", ["", "executorch/__init__.py"])
def test_folders_named_like_installed_packages_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package_file: str
) -> None:
    working, models = tmp_path / "working", tmp_path / "models"
    for folder in (working, models):
        for name in filter(None, (*_CLONE, package_file)):
            _write(folder / name)
    for name in _NAMESAKES:
        _write(working / name)
    # Not torch here: the model's own line puts this folder in front, and means it.
    _write(models / "helpers.py", "WIDTH = 3\n")
    _write(models / "my_model.py", _MODEL)
    monkeypatch.chdir(working)
    monkeypatch.setenv("PYTHONPATH", ".")
    model = {"python": f"{models}/my_model.py:make"}
    spec = spec_of({"model": model, "export": {"backend": "portable"}})
    log = tmp_path / "log.txt"
    exported = export_program(spec, Workspace(tmp_path / "cache"), silent, log)
    read = load_provenance(Path(exported.folder)).code_files
    assert sorted(Path(name).name for name in read) == ["helpers.py", "my_model.py"]
    assert not list(tmp_path.rglob("__pycache__")), "a change in the user's repository"


def _write(path: Path, text: str = _RAISES) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
