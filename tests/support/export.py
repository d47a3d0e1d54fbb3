"""Exported programs for tests, each made once.

    from tests.support.export import export_workspace, exported  # noqa: F401 - fixtures

    def test_something(exported):
        program = exported({"model": {"example": "mlp"}})

The cache is a folder of the test run; `ETDEPLOY_TEST_CACHE` names one that is kept.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from etdeploy.cache.workspace import Workspace
from etdeploy.core.values import silent
from etdeploy.export.cache import ExportContext, ExportedProgram
from etdeploy.export.derive import export_spec
from etdeploy.export.run import export_program
from etdeploy.export.spec import ExportSpec
from etdeploy.recipe.model import Recipe
from tests.support.forked import run_forked

CACHE_VARIABLE = "ETDEPLOY_TEST_CACHE"
ROOT = Path(__file__).parents[2]

# Examples small enough for tests, still with every kind of layer.
SMALL: dict[str, dict[str, int]] = {
    "mlp": {"features": 64, "width": 128, "layers": 2},
    "convnet": {"width": 8, "image": 32},
    "encoder": {"vocabulary": 64, "width": 64, "layers": 1, "tokens": 16},
    "transformer": {"vocabulary": 64, "width": 64, "layers": 1, "tokens": 16},
}

Exporter = Callable[[Mapping[str, Any]], ExportedProgram]


def nightly_except(names: Iterable[str], *smoke: str) -> list[Any]:
    """Parameters of a family-wide test, of which every change runs only some."""
    return [n if n in smoke else pytest.param(n, marks=pytest.mark.nightly) for n in names]


def selected(request: pytest.FixtureRequest, parameter: str) -> set[str]:
    """The values of a parameter that the module's selected tests have, for its shared fixture."""
    tests = (item for item in request.session.items if item.parent is request.node)
    params = (test.callspec.params for test in tests if hasattr(test, "callspec"))
    return {str(each[parameter]) for each in params if parameter in each}


def spec_of(recipe: Mapping[str, Any]) -> ExportSpec:
    """The spec of a recipe that is given as plain values, with absolute paths."""
    return export_spec(Recipe.model_validate(recipe))


@pytest.fixture(scope="session")
def export_workspace(shared_folder: Path) -> Workspace:
    """The cache that the tests of a run share, in all its processes."""
    kept = os.environ.get(CACHE_VARIABLE)
    return Workspace(Path(kept) if kept else shared_folder / "export-cache")


@pytest.fixture(scope="session")
def exported(export_workspace: Workspace, tmp_path_factory: pytest.TempPathFactory) -> Exporter:
    """Exports a recipe, or takes it from the session's cache."""
    log = tmp_path_factory.mktemp("export-logs") / "export.log"

    def export(recipe: Mapping[str, Any]) -> ExportedProgram:
        return export_program(spec_of(recipe), export_workspace, silent, log)

    return export


def program_key(spec: ExportSpec, workspace: Workspace) -> str | None:
    """The cache key of the program that an export would make now; None if only that can tell."""
    return ExportContext.now(spec, workspace).known_key()


def run_python(*arguments: str) -> str:
    """What `python ARGUMENTS` prints in the folder of the repository."""
    with tempfile.TemporaryDirectory() as folder:
        return run_forked(arguments, Path(folder) / "output.txt")


def run_support(module: str, *arguments: str) -> Any:
    """The object that a module of tests/support prints as the last line, of JSON."""
    return json.loads(run_python("-m", f"tests.support.{module}", *arguments).splitlines()[-1])


def export_all(root: Path, specs: Mapping[str, ExportSpec]) -> dict[str, str]:
    """Exports each into a folder of its name, all in one process; returns their exit codes.

    What a worker leaves beside its spec is in `work-NAME`.
    """
    jobs = []
    for name, spec in specs.items():
        for folder in (root / f"work-{name}", root / name):
            folder.mkdir()
        spec.save(root / f"work-{name}" / "spec.json")
        jobs.append((str(root / f"work-{name}" / "spec.json"), str(root / name)))
    (root / "jobs.json").write_text(json.dumps(jobs))
    run_python("-m", "tests.support.export_batch", str(root / "jobs.json"))
    return {name: (root / f"work-{name}" / "exit.txt").read_text() for name in specs}


def assert_exported(root: Path, specs: Mapping[str, ExportSpec]) -> None:
    """Exports all, and fails with the log of one that cannot be exported."""
    for name, code in export_all(root, specs).items():
        assert code == "0", (root / f"work-{name}" / "log.txt").read_text()[-3000:]


def run_exported(root: Path, names: Iterable[str]) -> dict[str, list[dict[str, Any]]]:
    """How far ExecuTorch's outputs are from the expected ones, by the program's name."""
    found: dict[str, list[dict[str, Any]]] = run_support(
        "export_execute", *(str(root / name) for name in names)
    )
    return found
