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
from etdeploy.program.generation import layout_for
from etdeploy.provider.checkout import SOURCE_VARIABLE
from etdeploy.recipe.load import LoadedRecipe, load_recipe
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
@pytest.mark.parametrize(
    ("target", "layout"), [("android-arm64", "etdeploy"), ("ios-arm64", "auto")]
)
def test_an_app_with_a_release_of_executorch_has_stock_attention(
    tmp_path: Path, runtime: str, asked: str, attention: str, target: str, layout: str
) -> None:
    loaded = _language_recipe(
        tmp_path, f"app.runtime={runtime}", f"export.generation.attention={asked}",
        f"export.generation.layout={layout}",
    )  # fmt: skip
    with open_job(loaded, tmp_path / "out", None, target, app=AppOptions()) as job:
        generation = job.loaded.recipe.export.generation
        assert generation is not None
        assert (generation.attention, generation.layout) == (attention, layout)
        assert job.original_recipe is loaded


def _language_recipe(folder: Path, *changes: str) -> LoadedRecipe:
    (folder / "model").mkdir()
    return load_recipe("llm-xnnpack", (f"--model={folder / 'model'}", *changes))


@pytest.mark.parametrize(
    ("changes", "app", "layout"),
    [
        ((), True, "executorch"),
        (("app.runtime=source",), True, "executorch"),
        (("export.generation.layout=executorch",), True, "executorch"),
        # A cache that each call copies, and prompts of one length.
        (("export.backend=openvino", "export.quantization=none"), True, "etdeploy"),
        (("model.lora={a: org/a}", "model.merge=false"), True, "etdeploy"),
        ((), False, "etdeploy"),
    ],
)
def test_an_app_for_android_has_one_method_for_prompts_and_single_tokens(
    tmp_path: Path, changes: tuple[str, ...], app: bool, layout: str
) -> None:
    loaded = _language_recipe(tmp_path, *changes)
    options = AppOptions() if app else None
    with open_job(loaded, tmp_path / "out", None, "android-arm64", app=options) as job:
        asked = job.loaded.recipe.export.generation
        assert asked is not None
        assert layout_for(asked) == layout
        # ExecuTorch's kernels for language models are in its releases.
        assert asked.attention == ("auto" if layout == "executorch" or not app else "stock")


def test_auto_and_etdeploy_are_the_same_program(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    specs = []
    for layout in ("auto", "etdeploy", "executorch"):
        changes = (f"--model={tmp_path / 'model'}", f"export.generation.layout={layout}")
        loaded = load_recipe("llm-xnnpack", changes)
        with open_job(loaded, tmp_path / "out", None, "linux-x86_64") as job:
            specs.append(resolve(job).export_spec.generation)
    assert specs[0] == specs[1] != specs[2]
