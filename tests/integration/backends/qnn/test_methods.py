"""Programs with several methods, compiled by Qualcomm's compiler and run in its simulator."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from etdeploy.cache.workspace import Workspace
from tests.support.cli import Cli
from tests.support.export import export_workspace
from tests.support.qnn_simulator import NEEDS_SIMULATOR

pytestmark = [pytest.mark.integration, NEEDS_SIMULATOR]
__all__ = ["export_workspace"]

ROOT = Path(__file__).parents[4]
FACTORY = ROOT / "tests/data/export/methods.py"
APART, SHARED = "apart.yaml", "shared.yaml"


@dataclass(frozen=True)
class Exported:
    """One model as two programs: each method with weights of its own, and all with the same."""

    cli: Cli
    programs: dict[bool, Path]

    def run(self, method: str, recipe: str) -> tuple[dict[str, Any], str]:
        """The record of one method, and what was told meanwhile."""
        done = self.cli.ok(
            "run", "--recipe", recipe, "--set", f"benchmark.method={method}", "--json"
        )
        return done.json, done.stderr


@pytest.fixture(scope="module")
def exported(export_workspace: Workspace, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """One command for both, so that they share what an export imports."""
    cli = Cli(export_workspace.root, tmp_path_factory.mktemp("work"), {})
    for name in (APART, SHARED):
        options = {"weight_sharing": name == SHARED}
        export = {"backend": "qnn", "soc": "SM8650", "quantization": "none", "options": options}
        cli.recipe(json.dumps({"model": {"python": f"{FACTORY}:fixed"}, "export": export}), name)
    found = cli.ok("export", "--recipe", APART, "--recipe", SHARED, "--json").json
    made = [Path(each["folder"]) / "program.pte" for each in found]
    return Exported(cli, {_shares(cli, path): path for path in made})


def _shares(cli: Cli, program: Path) -> bool:
    """Whether every partition says that it was compiled to share weights."""
    (found,) = {
        "weight_sharing=true" in delegate["compiled_for"]["settings"]
        for method in cli.ok("inspect", str(program), "--json").json["methods"]
        for delegate in method["delegates"]
    }
    return found


@pytest.mark.parametrize("method", ["prefill", "decode"])
def test_each_method_gives_its_outputs_without_another_export(
    exported: Exported, method: str
) -> None:
    record, told = exported.run(method, APART)
    assert "program.pte exported" not in told
    assert record["simulated"]["soc"] == "SM8650"
    assert record["program"]["method"] == method
    (output,) = record["workload"]["outputs"]
    assert output["within_tolerance"] is True
    assert output["cosine_similarity"] > 0.9999


def test_shared_weights_are_stored_once(exported: Exported) -> None:
    sizes = {shared: path.stat().st_size for shared, path in exported.programs.items()}
    # Two layers of 32 times 4,096 weights in 16-bit floats.
    weights = 2 * 32 * 4096 * 2
    assert sizes[True] < 1.4 * weights
    assert sizes[False] - sizes[True] > 0.9 * weights


@pytest.mark.parametrize("finished", [False, True])
def test_shared_weights_are_refused_before_the_run(exported: Exported, finished: bool) -> None:
    recipe = SHARED
    if finished:
        recipe = _finished(exported, shared=True)
    result = exported.cli(
        "run", "--recipe", recipe, "--set", "benchmark.method=decode", "--device", "host"
    )
    assert result.code == 5
    assert "Qualcomm's simulator cannot load such a program" in result.stderr
    assert "timing pass" not in result.stderr
    assert ("--set export.options.weight_sharing=false" in result.stderr) != finished


@pytest.mark.parametrize("method", ["prefill", "decode"])
def test_a_method_of_a_finished_program_runs(exported: Exported, method: str) -> None:
    record, _ = exported.run(method, _finished(exported, shared=False))
    assert record["program"]["method"] == method
    assert record["simulated"]["soc"] == "SM8650"
    assert record["passes"]["timing"]["iterations"] == 1


def _finished(exported: Exported, *, shared: bool) -> str:
    name = f"finished-{shared}"
    shutil.copy(exported.programs[shared], exported.cli.folder / f"{name}.pte")
    return exported.cli.recipe(f"model: {{program: {name}.pte}}\n", f"{name}.yaml")
