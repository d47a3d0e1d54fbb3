"""The worker runs the user's file first, so that its mistakes do not wait for torch."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from etdeploy.export.protocol import FAILURE_FILE, ExportFailure
from etdeploy.export.spec import CodeReference, ExportSpec, HfModel
from etdeploy.export.worker.__main__ import main
from etdeploy.export.worker.loading import paths
from etdeploy.recipe.sections.export import ExportGeneration
from tests.support.facts import lacks


@pytest.fixture(autouse=True)
def interpreter(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What the worker changes in its own process is undone; tests of others have imported torch."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    monkeypatch.setattr(paths.user_folders, "folders", [])
    monkeypatch.setattr("warnings.filters", [])
    before, numbers = dict(sys.modules), random.getstate()
    for name in before:
        if name.partition(".")[0] == "torch":
            del sys.modules[name]
    yield
    random.setstate(numbers)
    sys.modules.clear()
    sys.modules.update(before)


@pytest.mark.parametrize(
    ("code", "message", "line"),
    [
        (
            "import json\nimport no_such_module\n",
            "importing my_model.py raised ModuleNotFoundError: No module named 'no_such_module'",
            2,
        ),
        ("raise ValueError('no width')", "importing my_model.py raised ValueError: no width", 1),
        (
            "def build(): ...\nglobals()",
            "model.python names my_model.py:make, but there is no 'make' there; it has build",
            None,
        ),
    ],
)
def test_a_mistake_in_the_users_file_does_not_wait_for_torch(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], code: str, message: str, line: int | None
) -> None:
    (tmp_path / "my_model.py").write_text(code)
    python = CodeReference(file=str(tmp_path / "my_model.py"), name="make")
    ExportSpec(python=python, backend="portable").save(tmp_path / "spec.json")
    assert "torch" not in sys.modules
    assert main([str(tmp_path / "spec.json"), str(tmp_path)]) == 1
    failure = ExportFailure.load(tmp_path / FAILURE_FILE)
    assert (failure.message, failure.line) == (message, line)
    assert "torch" not in sys.modules
    assert "::progress 0.02 " in capfd.readouterr().out


def test_a_hub_that_cannot_be_reached_is_told_before_torch_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    spec = ExportSpec(hf=HfModel(id="org/model"), generation=ExportGeneration(), backend="portable")
    spec.save(tmp_path / "spec.json")
    assert main([str(tmp_path / "spec.json"), str(tmp_path)]) == 1
    failure = ExportFailure.load(tmp_path / FAILURE_FILE)
    assert (failure.kind, failure.file) == ("hub", "model.hf")
    assert not lacks(failure.message, "org/model", "http://127.0.0.1:9 ")
    assert "torch" not in sys.modules
    assert "::progress 0.03 " in capfd.readouterr().out
