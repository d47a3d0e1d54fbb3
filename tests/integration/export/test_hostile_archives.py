"""`model.exported` runs no code of the archive, whichever entry carries it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from etdeploy.core.processes import process

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "tests/data/export/hostile_archives.py"


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    argv = (sys.executable, str(SCRIPT), str(folder))
    # Set by users whose checkpoints are old; it must not change what is read here.
    variables = {"TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"}
    outcome = process.run(process.Request(argv, cwd=ROOT, env=variables))
    assert outcome.ok, outcome.stderr[-3000:]
    return folder


def test_no_entry_runs_code(attacked: Path) -> None:
    assert [path.name for path in attacked.glob("ran-*")] == []


def test_an_archive_with_sizes_keywords_and_branches_loads(attacked: Path) -> None:
    assert answers(attacked)["unchanged"] == "loaded"


@pytest.mark.parametrize(
    ("name", "fact"),
    [
        ("sample-inputs", "example input"),
        ("pickled-weight", "a weight"),
        ("pickled-constant", "a constant"),
        ("legacy-weights", "a weight"),
        ("legacy-constants", "a constant"),
        ("opaque-object", "model_constants_config.json"),
        ("custom-object", "model_constants_config.json"),
        ("compiled-code", "data/aotinductor/model/model.so"),
        ("expression", "expr_str"),
        ("nested-expression", "expr_str"),
        ("guard", "guards_code"),
        ("function", "torch.os.mkdir"),
        ("operator-function", "_operator.methodcaller"),
        ("file-operator", "torch.ops.aten.from_file.default"),
        ("parameter-name", "parameter_name"),
        ("placeholder-name", "as name"),
        ("forward-argument", "forward_arg_names"),
        ("keyword-name", "as name"),
        ("enum", "in_spec"),
        ("default-factory", "in_spec"),
        ("second-program", "cannot be read"),
        ("old-format", "cannot be read"),
    ],
)
def test_the_entry_is_named(attacked: Path, name: str, fact: str) -> None:
    answer = answers(attacked)[name]
    assert fact in answer
    assert "weights_only" not in answer


def answers(folder: Path) -> dict[str, str]:
    found: dict[str, str] = json.loads((folder / "answers.json").read_text())
    return found
