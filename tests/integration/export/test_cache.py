"""A program is exported again when something that its code read changed, and only then."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from etdeploy.cache.workspace import Workspace
from etdeploy.core.values import silent
from etdeploy.export.cache import ExportedProgram
from etdeploy.export.run import export_program
from etdeploy.export.spec import ExportSpec
from etdeploy.program.folder import load_provenance
from tests.support.export import program_key, spec_of

pytestmark = pytest.mark.integration

MODEL = """
from pathlib import Path

import torch
import helper

def make():
    module = torch.nn.Linear(4, helper.WIDTH)
    scale = float(Path(__file__).with_name("scale.txt").read_text())
    with torch.no_grad():
        module.weight.fill_(scale)
    return module, (torch.ones(1, 4),)
"""


class Project:
    """A user's folder with a model, a module beside it and a file that the model reads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        (folder / "model.py").write_text(MODEL)
        (folder / "helper.py").write_text("WIDTH = 3\n")
        (folder / "scale.txt").write_text("0.5")

    def spec(self) -> ExportSpec:
        model = {"python": f"{self.folder}/model.py:make"}
        return spec_of({"model": model, "export": {"backend": "portable"}})


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return Project(tmp_path_factory.mktemp("users") / "project")


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return Workspace(tmp_path_factory.mktemp("cache"))


Export = Callable[[], ExportedProgram]


@pytest.fixture
def export(project: Project, workspace: Workspace, tmp_path: Path) -> Export:
    def run() -> ExportedProgram:
        return export_program(project.spec(), workspace, silent, tmp_path / "log.txt")

    return run


def _touch(path: Path) -> None:
    info = path.stat()
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns + 10**9))


def test_each_change_exports_again_and_nothing_else_does(
    project: Project, workspace: Workspace, export: Export
) -> None:
    helper, scale = project.folder / "helper.py", project.folder / "scale.txt"
    assert program_key(project.spec(), workspace) is None
    first = export()
    assert not first.cached
    code = load_provenance(Path(first.folder)).code_files
    assert sorted(Path(p).name for p in code) == ["helper.py", "model.py", "scale.txt"]
    assert export() == first.model_copy(update={"cached": True})

    for path in (helper, scale, project.folder / "model.py"):
        _touch(path)
    assert export().cached

    helper.write_text("WIDTH = 5\n")
    assert program_key(project.spec(), workspace) is None
    wider = export()
    assert not wider.cached
    assert wider.key != first.key

    scale.write_text("0.25")
    assert program_key(project.spec(), workspace) is None
    scaled = export()
    assert not scaled.cached
    assert scaled.sha256 != wider.sha256

    helper.write_text("WIDTH = 3\n")
    scale.write_text("0.5")
    assert export() == first.model_copy(update={"cached": True})


def test_a_damaged_program_is_made_again(export: Export) -> None:
    first = export()
    program = Path(first.folder) / "program.pte"
    whole = program.read_bytes()
    program.write_bytes(whole[:-10])
    again = export()
    assert (again.cached, again.key) == (False, first.key)
    assert program.read_bytes() == whole
