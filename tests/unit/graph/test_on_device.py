"""The steps on a device, for language models."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from etdeploy.cache.workspace import Workspace
from etdeploy.core.errors import DeviceError
from etdeploy.core.values import silent
from etdeploy.device_pool import reserve
from etdeploy.devices.base import Device
from etdeploy.graph import on_device
from etdeploy.graph.job import Job
from etdeploy.history.location import require_location
from etdeploy.history.nights import KnownDevice
from etdeploy.program.folder import Provenance
from etdeploy.program.generation import Generation
from etdeploy.recipe.load import load_recipe
from etdeploy.targets.platforms import find_target


def _job(tmp_path: Path, *overrides: str) -> Job:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("model: {hf: some/model}\nbenchmark: {generation: {prompt_tokens: [40]}}\n")
    target = find_target("linux-x86_64")
    return Job(
        loaded=load_recipe(str(recipe), overrides),
        target=target,
        host=target,
        workspace=Workspace(tmp_path / "cache"),
        output=tmp_path / "out",
    )


@pytest.mark.parametrize(("context", "fits"), [(256, True), (64, False)])
def test_a_grid_that_does_not_fit_leaves_the_program_to_generate_texts(
    tmp_path: Path, context: int, fits: bool
) -> None:
    generation = Generation(
        methods=(), vocabulary=9, context=context, model="m", path="plain", path_reason="a test"
    )
    provenance = Provenance(source="m", method="decode", generation=generation)
    found = on_device.request_files(_job(tmp_path), provenance, tmp_path)
    assert found is not None
    assert bool(found) == fits


def test_each_model_of_the_command_line_has_a_state_of_its_own(tmp_path: Path) -> None:
    plain, again = _job(tmp_path), _job(tmp_path, "model.hf=other/model")
    first, second = (_job(tmp_path, f"--model=a/{name}") for name in ("one", "two"))
    assert plain.state == again.state
    assert len({plain.state, first.state, second.state}) == 3


def test_a_device_that_somebody_else_reserved_is_not_held(tmp_path: Path) -> None:
    device = SimpleNamespace(name="android:A1")
    job = replace(_job(tmp_path), device=cast(Device, device), identity="android-A1")
    with on_device.device_lock(job, silent):
        pass
    phone = KnownDevice(identity="android-A1", device="android:A1")
    reserve(require_location(None), phone, "anna@owl", 600.0, "tuning")
    with (
        pytest.raises(DeviceError, match="anna@owl has reserved"),
        on_device.device_lock(job, silent),
    ):
        pytest.fail("it is reserved")
