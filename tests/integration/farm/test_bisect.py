"""A real repository, real programs and a runner: the commit that made the layers larger is found.

Commits that change nothing of the model share a program, so two are exported for all of them.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from etdeploy.cache.workspace import Workspace
from tests.support.cli import Cli
from tests.support.export import SMALL, Exporter, export_workspace, exported  # noqa: F401 - fixtures

pytestmark = pytest.mark.integration

# The first is that of other tests, too.
_MODELS = tuple(
    {"example": "mlp", "arguments": SMALL["mlp"] | wider} for wider in ({}, {"width": 2048})
)
_RECIPE = "export: {backend: xnnpack}\nbenchmark: {iterations: 20, warmup: 1, profile: false}\n"
_RUNS = ("--runs", "3")


def git(folder: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", "-c", "user.name=T", "-c", "user.email=t@example.org", *arguments],
        cwd=folder, check=True, capture_output=True, text=True,
    ).stdout.strip()  # fmt: skip


@pytest.fixture
def cli(export_workspace: Workspace, tmp_path: Path) -> Cli:  # noqa: F811
    return Cli(export_workspace.root, tmp_path, {})


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    (folder / "recipes").mkdir(parents=True)
    git(tmp_path, "init", "-q", str(folder))
    for number, large in enumerate((False, False, True)):
        text = f"# {number}\nmodel: {json.dumps(_MODELS[large])}\n{_RECIPE}"
        (folder / "recipes" / "small.yaml").write_text(text)
        git(folder, "add", "-A")
        git(folder, "commit", "-q", "-m", f"{'large' if large else 'small'}, {number}")
    return folder


@pytest.mark.nightly
def test_the_commit_is_found_and_the_work_tree_left_alone(
    repository: Path, cli: Cli, tmp_path: Path
) -> None:
    recipe = repository / "recipes" / "small.yaml"
    edited = recipe.read_text() + "# not committed\n"
    recipe.write_text(edited)
    line = ("farm", "bisect", "-r", str(recipe), "--bad", "HEAD", *_RUNS)
    unknown = cli(*line, "--good", "nowhere")
    assert unknown.code == 2
    assert "'nowhere'" in unknown.stderr
    found = cli.ok(*line, "--good", "HEAD~2", "--json").json
    assert [each["label"].partition(" ")[2] for each in found["first_bad"]] == ["large, 2"]
    assert found["last_good"]["label"].endswith("small, 1")
    assert found["ratio"] > 2
    assert recipe.read_text() == edited
    assert git(repository, "worktree", "list").count("\n") == 0
    assert git(repository, "status", "--short") == "M recipes/small.yaml"
    assert not list((tmp_path / "etdeploy-out").glob("bisect-*"))


def test_the_program_is_found_by_files_and_digests(
    exported: Exporter, cli: Cli  # noqa: F811
) -> None:  # fmt: skip
    export = {"export": {"backend": "xnnpack"}}
    made = [exported({"model": model, **export}) for model in _MODELS]
    good, bad = (Path(each.folder) / "program.pte" for each in made)
    # The same program to the runtime, and another file.
    between = cli.folder / "two words.pte"
    between.write_bytes(good.read_bytes() + b"\0")
    recipe = cli.recipe("model: {example: mlp}\n" + _RECIPE)
    line = ("farm", "bisect", "-r", recipe, *_RUNS, "--programs")
    found = cli.ok(*line, made[0].sha256[:12], str(between), str(bad), "--json").json
    assert found["first_bad"] == [found["bad"]]
    assert found["last_good"]["id"] == str(between)
    assert found["ratio"] > 2
    turned = cli(*line, str(bad), str(good))
    assert turned.code == 2
    assert "better" in turned.stderr
