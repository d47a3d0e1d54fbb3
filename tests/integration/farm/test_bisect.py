"""A real repository, a real export and runner: the commit that made the layers larger is found."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from etdeploy.cache.workspace import Workspace
from tests.support.cli import Cli
from tests.support.export import export_workspace  # noqa: F401 - a fixture

pytestmark = pytest.mark.integration

_MODEL = """import torch

def make():
    torch.manual_seed(0)
    n = {width}
    layers = torch.nn.Linear(8, n), torch.nn.ReLU(), torch.nn.Linear(n, n), torch.nn.Linear(n, 4)
    return torch.nn.Sequential(*layers).eval(), (torch.randn(1, 8),)
"""
_RECIPE = (
    "model: {python: 'model.py:make'}\nexport: {backend: xnnpack}\n"
    "benchmark: {iterations: 50, warmup: 2}\n"
)


def git(folder: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", "-c", "user.name=T", "-c", "user.email=t@example.org", *arguments],
        cwd=folder, check=True, capture_output=True, text=True,
    ).stdout.strip()  # fmt: skip


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    (folder / "recipes").mkdir(parents=True)
    git(tmp_path, "init", "-q", str(folder))
    (folder / "recipes" / "small.yaml").write_text(_RECIPE)
    for number, width in enumerate((16, 16, 768, 768)):
        text = f"# {number}\n{_MODEL.format(width=width)}"
        (folder / "recipes" / "model.py").write_text(text)
        git(folder, "add", "-A")
        git(folder, "commit", "-q", "-m", f"width {width}, {number}")
    return folder


def test_the_commit_is_found_and_the_work_tree_left_alone(
    repository: Path, export_workspace: Workspace, tmp_path: Path  # noqa: F811
) -> None:  # fmt: skip
    recipe = repository / "recipes" / "small.yaml"
    edited = recipe.read_text() + "# not committed\n"
    recipe.write_text(edited)
    cli = Cli(export_workspace.root, tmp_path, {})
    line = ("farm", "bisect", "-r", str(recipe), "--bad", "HEAD", "--runs", "3")
    unknown = cli(*line, "--good", "nowhere")
    assert unknown.code == 2
    assert "there is no commit 'nowhere'" in unknown.stderr
    found = cli.ok(*line, "--good", "HEAD~3", "--json").json
    assert [each["label"].partition(" ")[2] for each in found["first_bad"]] == ["width 768, 2"]
    assert found["last_good"]["label"].endswith("width 16, 1")
    assert found["ratio"] > 2
    assert recipe.read_text() == edited
    assert git(repository, "worktree", "list").count("\n") == 0
    assert git(repository, "status", "--short") == "M recipes/small.yaml"
    assert not list((tmp_path / "etdeploy-out").glob("bisect-*"))
