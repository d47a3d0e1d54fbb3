"""Custom operators in what is to be exported."""

from __future__ import annotations

from pathlib import Path

from etdeploy.cache.workspace import Workspace
from etdeploy.export.cache import ExportContext
from etdeploy.export.spec import ExportSpec, export_spec
from etdeploy.recipe.model import Recipe


def _spec(custom_ops: Path) -> ExportSpec:
    export = {"custom_ops": str(custom_ops)}
    return export_spec(Recipe.model_validate({"model": {"example": "mlp"}, "export": export}))


def test_the_file_is_code_of_the_user(tmp_path: Path) -> None:
    spec = _spec(tmp_path / "ops.py")
    assert spec.runs_user_code
    assert spec.named_files() == {"custom_ops": f"{tmp_path}/ops.py"}


def test_the_program_follows_the_files_content_and_not_its_place(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "cache")
    keys = []
    for folder, text in (("a", "# one"), ("b", "# one"), ("c", "# two")):
        path = tmp_path / folder / "ops.py"
        path.parent.mkdir()
        path.write_text(text)
        keys.append(ExportContext.now(_spec(path), workspace).first)
    assert keys[0] == keys[1] != keys[2]
