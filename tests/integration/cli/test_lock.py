"""A deployment is locked, exported again from another folder, and compared."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from etdeploy.cache.workspace import Workspace
from tests.support.cli import Cli
from tests.support.export import export_workspace  # noqa: F401 - a fixture

pytestmark = pytest.mark.integration

_MODEL = """
import torch

def make():
    return torch.nn.Linear(4, 4).eval(), (torch.ones(1, 4),)
"""
_RECIPE = 'model: {python: "m.py:make"}\nexport: {backend: xnnpack}\n'


@pytest.fixture
def cli(export_workspace: Workspace, tmp_path: Path) -> Cli:  # noqa: F811
    (tmp_path / "m.py").write_text(_MODEL)
    (tmp_path / "r.yaml").write_text(_RECIPE)
    return Cli(export_workspace.root, tmp_path, {})


@pytest.mark.nightly
def test_a_locked_recipe_is_reproduced_until_its_model_changes(cli: Cli, tmp_path: Path) -> None:
    told = cli.ok("lock", "-r", "r.yaml", "-t", "android-arm64", "--json").json
    assert told["path"] == str(tmp_path / "r.lock")
    locked = json.loads((tmp_path / "r.lock").read_text())
    assert list(locked["files"]) == ["m.py"]
    assert locked["plan"]["target"] == "android-arm64"
    assert cli.ok("verify", "r.lock", "--json").json == {"reproduced": True, "differences": []}

    (tmp_path / "m.py").write_text(_MODEL.replace("(4, 4)", "(4, 5)"))
    other = cli("verify", "r.lock")
    assert other.code == 11
    assert "program.pte" in other.stdout
    assert "m.py" in other.stderr
    remedy = "etdeploy lock --recipe r.yaml --target android-arm64 --output r.lock"
    assert remedy in other.stderr

    # A lock file of another recipe, and another file, are left alone.
    before = (tmp_path / "r.lock").read_bytes()
    refused = cli("lock", "-r", "portable", "-o", "r.lock")
    assert refused.code == 2
    assert "portable.lock" in refused.stderr
    (tmp_path / "notes.lock").write_text("notes")
    assert cli("lock", "-r", "r.yaml", "-o", "notes.lock").code == 2
    assert (tmp_path / "notes.lock").read_text() == "notes"
    assert (tmp_path / "r.lock").read_bytes() == before
