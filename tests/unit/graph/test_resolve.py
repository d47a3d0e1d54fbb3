"""Everything is looked up once; steps are made, and plans derived, from what was found."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from etdeploy.core.errors import BuildError
from etdeploy.graph.job import AppOptions
from etdeploy.graph.jobs import open_job
from etdeploy.graph.pipeline import make_steps
from etdeploy.graph.resolve import Resolved, resolve
from etdeploy.provider.checkout import SOURCE_VARIABLE
from etdeploy.recipe.load import load_recipe
from tests.support.audit import touched
from tests.support.machine import bare_machine, equip
from tests.support.runtime_values import make_method, make_program

_STAND_IN = Path(__file__).parents[2] / "data" / "checkout"
_VULKAN = make_program(make_method(delegates=("VulkanBackend",)))


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    equip(bare_machine(tmp_path, monkeypatch), monkeypatch)


def _resolved(tmp_path: Path, *overrides: str) -> Resolved:
    with open_job(load_recipe("xnnpack", overrides), tmp_path / "out", None, "linux-x86_64") as job:
        return resolve(job)


def test_making_the_steps_touches_nothing(tmp_path: Path) -> None:
    shutil.copytree(_STAND_IN, tmp_path / "executorch")
    resolved = _resolved(tmp_path, f"runtime.source={tmp_path / 'executorch'}")
    with touched() as seen:
        steps = make_steps(resolved)
    assert seen == []
    assert [step.name for step in steps] == [
        "export", "plan", "runtime", "runner", "check", "bundle",
    ]  # fmt: skip


def test_sources_are_looked_up_when_the_program_turns_out_to_need_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "executorch"
    shutil.copytree(_STAND_IN, folder)
    monkeypatch.setenv(SOURCE_VARIABLE, str(folder))
    resolved = _resolved(tmp_path)
    assert resolved.plan.provider.value == "wheel"
    assert resolved.sources is None
    needing = resolved.with_program(_VULKAN)
    assert needing.plan.provider.value == "source"
    assert needing.checkout is not None
    assert needing.checkout.folder == folder


def test_a_checkout_that_cannot_be_used_is_a_finding_and_no_failure(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    resolved = _resolved(tmp_path, f"runtime.source={tmp_path / 'empty'}")
    assert resolved.plan.provider.value == "source"
    assert resolved.checkout is None
    assert resolved.sources is not None
    with pytest.raises(BuildError):
        resolved.sources.require_usable()


@pytest.mark.parametrize("measures", [True, False])
def test_only_a_program_that_may_be_measured_gets_an_etrecord(
    tmp_path: Path, measures: bool
) -> None:
    with open_job(load_recipe("xnnpack"), tmp_path / "out", None, "linux-x86_64") as job:
        spec = resolve(replace(job, measures=measures)).export_spec
    assert spec.etrecord is measures


@pytest.mark.parametrize(
    ("runtime", "asked", "attention"),
    [
        ("auto", "auto", "stock"),
        ("prebuilt", "auto", "stock"),
        ("source", "auto", "auto"),
        ("auto", "kernel", "kernel"),
    ],
)
def test_an_app_with_a_release_of_executorch_has_stock_attention(
    tmp_path: Path, runtime: str, asked: str, attention: str
) -> None:
    (tmp_path / "model").mkdir()
    changes = (
        f"--model={tmp_path / 'model'}",
        f"app.runtime={runtime}",
        f"export.generation.attention={asked}",
    )
    loaded = load_recipe("llm-xnnpack", changes)
    with open_job(loaded, tmp_path / "out", None, "android-arm64", app=AppOptions()) as job:
        generation = job.loaded.recipe.export.generation
        assert generation is not None
        assert generation.attention == attention
        assert job.original_recipe is loaded
