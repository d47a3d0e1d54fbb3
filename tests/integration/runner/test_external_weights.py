"""The runner loads weights that are in tensor data files beside the program."""

from __future__ import annotations

from pathlib import Path

import pytest

from etdeploy.cache.workspace import Workspace
from tests.support.cli import Cli
from tests.support.export import export_workspace, run_python  # noqa: F401

pytestmark = pytest.mark.integration

RECIPE = """\
model: {program: NAME/model.pte}
benchmark: {iterations: 1, warmup: 0, profile: false, memory: false}
"""


@pytest.mark.nightly
def test_the_outputs_are_those_of_weights_inside(
    export_workspace: Workspace,  # noqa: F811
    tmp_path: Path,
) -> None:
    (tmp_path / "programs").mkdir()
    run_python("-m", "tests.support.external_weights", str(tmp_path / "programs"))
    cli = Cli(export_workspace.root, tmp_path / "programs", {})
    outputs = {}
    for name in ("inside", "outside"):
        recipe = cli.recipe(RECIPE.replace("NAME", name), f"{name}.yaml")
        cli.ok("run", "--recipe", recipe, "--device", "host", "--output", str(tmp_path / name))
        [output] = (tmp_path / name).glob("*/outputs/*.bin")
        outputs[name] = output.read_bytes()
    assert outputs["inside"] == outputs["outside"]
    assert any(outputs["inside"])
    (tmp_path / "programs" / "outside" / "weights.ptd").unlink()
    refused = cli("run", "--recipe", recipe, "--device", "host")
    assert refused.code != 0
    assert "no .ptd file beside it" in refused.stderr
