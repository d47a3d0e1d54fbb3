"""What steps do, and the lines with which they report it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from etdeploy.core import cancel
from etdeploy.core.errors import BuildError, ExportError, Interrupted
from etdeploy.core.values import silent
from etdeploy.devices.base import PushReport
from etdeploy.export.cache import ExportedProgram
from etdeploy.export.spec import ExportSpec
from etdeploy.graph.jobs import open_job
from etdeploy.graph.on_device import pushed_line
from etdeploy.graph.pipeline import make_steps, origin
from etdeploy.graph.resolve import resolve
from etdeploy.graph.tasks.steps import Step, StepLog
from etdeploy.recipe.load import load_recipe
from etdeploy.recipe.sections.export import ExportGeneration
from tests.support.runtime_values import make_method, make_program


@pytest.mark.parametrize(
    ("spec", "cached", "told"),
    [
        (ExportSpec(example="mlp"), False, "exported"),
        (ExportSpec(example="mlp"), True, "taken from the cache"),
        (ExportSpec(program="/models/net.pte"), False, "taken from net.pte"),
        (ExportSpec(program="/models/net.pte"), True, "taken from net.pte"),
    ],
)
def test_a_finished_program_is_not_made(spec: ExportSpec, cached: bool, told: str) -> None:
    exported = ExportedProgram(folder="/cache/k", key="k", cached=cached, sha256="0")
    assert origin(spec, exported) == told


@pytest.mark.parametrize(
    ("report", "line"),
    [
        (PushReport(1, 2_000_000, 1, 0.5), "1 file, 2.0 MB; 1 already there"),
        (PushReport(8, 2_000_000, 0, 0.5), "8 files, 2.0 MB; 0 already there"),
        (PushReport(0, 0, 1, 0.5), "the device already has 1 file"),
        (
            PushReport(1, 50_000_000, 0, 0.5, resumed_bytes=900_000_000),
            "1 file, 50.0 MB (900.0 MB were there of an interrupted push); 0 already there",
        ),
        (
            PushReport(2, 2_000_000, 0, 0.5, removed_bytes=3_000_000),
            "2 files, 2.0 MB; 0 already there; removed 3.0 MB of what was used longest ago",
        ),
    ],
)
def test_a_push_counts_its_files(report: PushReport, line: str) -> None:
    assert pushed_line(report) == line


def steps_of(
    folder: Path, *overrides: str, generates: bool = True, exported: bool = False
) -> dict[str, Step]:
    recipe = load_recipe("xnnpack", overrides)
    with open_job(recipe, folder / "out", None, "linux-x86_64") as job:
        resolved = resolve(job)
    if generates:
        update = {"generation": ExportGeneration()}
        spec = resolved.export_spec.model_copy(update=update)
        resolved = replace(resolved, export_spec=spec)
    if exported:
        program = make_program(make_method(delegates=("XnnpackBackend",)))
        resolved = resolved.with_program(program)
    return {step.name: step for step in make_steps(resolved)}


def test_a_runner_is_built_ahead_where_the_recipe_tells_what_it_has(tmp_path: Path) -> None:
    steps = steps_of(tmp_path)
    assert steps["prebuild"].needs == ()
    assert steps["runner"].after == ("prebuild",)
    for other in (
        steps_of(tmp_path, generates=False),
        steps_of(tmp_path, exported=True),
        steps_of(tmp_path, "runtime.provider=source"),
    ):
        assert "prebuild" not in other
        assert other["runner"].after == ()


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What stands for a build is called, instead of one."""
    calls: list[Any] = []

    def build(*_: Any) -> Any:
        return calls.pop()()

    monkeypatch.setattr("etdeploy.runner.builder.build_runner", build)
    monkeypatch.setattr("etdeploy.graph.pipeline.obtain_libraries", lambda *_: None)
    return calls


def test_a_build_ahead_that_fails_leaves_the_error_to_the_runner_step(
    tmp_path: Path, builds: list[Any]
) -> None:
    def fails() -> None:
        raise BuildError("no compiler")

    builds.append(fails)
    step = steps_of(tmp_path)["prebuild"]
    assert "no compiler" in step.action(StepLog(silent, tmp_path / "log"))
    assert not step.output.exists()


def test_a_build_ahead_ends_with_an_export_that_fails(
    tmp_path: Path, builds: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, log = steps_of(tmp_path), StepLog(silent, tmp_path / "log")

    def raises(*_: Any) -> None:
        raise ExportError("no model")

    def compiles() -> None:
        with pytest.raises(ExportError, match="no model"):
            steps["export"].action(log)
        cancel.checkpoint()

    monkeypatch.setattr("etdeploy.graph.pipeline.export_program", raises)
    builds.append(compiles)
    assert "stopped" in steps["prebuild"].action(log)
    assert not cancel.requested()


def test_a_stopped_run_stops_a_build_ahead(tmp_path: Path, builds: list[Any]) -> None:
    step, run = steps_of(tmp_path)["prebuild"], cancel.Flag()

    def compiles() -> None:
        run.set()
        cancel.checkpoint()

    builds.append(compiles)
    with cancel.bound(run), pytest.raises(Interrupted):
        step.action(StepLog(silent, tmp_path / "log"))
