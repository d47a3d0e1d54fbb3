"""Emulated devices: defaults that end in time, unless the user gave others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import etdeploy.bench.measure as measurement_module
from etdeploy.bench.assemble import Revision
from etdeploy.bench.measure import measure
from etdeploy.bench.passes import emulated_defaults
from etdeploy.bench.records.stored import StoredRun
from etdeploy.core.errors import RunError
from etdeploy.devices.base import Capabilities, RunOutcome
from etdeploy.recipe.load import load_recipe
from tests.support.bench_device import Answer, FakeDevice, FakeRun
from tests.unit.bench.test_measure import Setting, setting

__all__ = ["setting"]

EXPECTED = bytes(range(32))


ONE_S = 40.0


class SlowRun(FakeRun):
    """An inference takes `ONE_S`."""

    def _results(self, given: Mapping[str, str]) -> dict[str, Any]:
        return {**super()._results(given), "samples_ms": [1000 * ONE_S]}


class Emulated(FakeDevice):
    """A slow device."""

    capabilities = Capabilities(emulated=True)

    def __init__(self, answer: Answer = lambda _: None) -> None:
        super().__init__((EXPECTED,), (2, 4))
        self.folder: SlowRun = SlowRun((EXPECTED,), (2, 4), answer)

    def passes(self) -> dict[str, dict[str, str]]:
        return {Path(each["--results"]).stem: each for each in self.folder.arguments}


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Emulated:
    monkeypatch.setattr(measurement_module, "revision_of", lambda _: Revision("c0ffee", True))
    return Emulated()


def test_what_the_user_gives_is_taken(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("extends: xnnpack\nbenchmark: {iterations: 70}\nruntime: {threads: 0}\n")
    recipe = emulated_defaults(load_recipe(str(file))).recipe
    assert (recipe.runtime.threads, recipe.benchmark.iterations) == (0, 70)
    given = ("runtime.threads=[1, 2]", "benchmark.iterations=100", "benchmark.timeout_s=7")
    recipe = emulated_defaults(load_recipe("xnnpack", given)).recipe
    assert (recipe.runtime.threads, recipe.benchmark.iterations) == ((1, 2), 100)
    assert recipe.benchmark.timeout_s == 7


def run(setting: Setting, device: Emulated, *overrides: str) -> StoredRun:
    """A measurement of the bundled recipe."""
    prepared = replace(setting.prepared(), loaded=load_recipe("xnnpack", overrides))
    return measure(device, prepared, setting.folder / "out")


def test_limits_follow_from_the_measured_speed(setting: Setting, device: Emulated) -> None:
    record = run(setting, device).record
    limits = device.folder.limits_s
    assert device.passes()["probe"]["--iterations"] == "1"
    # The warm-up takes three inferences at least, and ten are timed.
    assert limits["timing"] >= 4 * 13 * ONE_S > 1200
    assert limits["timing.2"] == limits["timing"]
    assert device.passes()["timing"]["--threads"] == "1"
    assert device.passes()["timing"]["--iterations"] == "10"
    assert record.recipe.content["runtime"]["threads"] == 1
    assert "probe.json" not in setting.left()


def test_more_iterations_get_more_time(setting: Setting, device: Emulated) -> None:
    run(setting, device, "benchmark.iterations=1000")
    assert device.folder.limits_s["timing"] >= 4 * 1000 * ONE_S
    assert device.folder.limits_s["profile"] < device.folder.limits_s["timing"]


def test_a_limit_of_the_user_stays_and_nothing_is_probed(
    setting: Setting, device: Emulated
) -> None:
    run(setting, device, "benchmark.timeout_s=9")
    assert set(device.folder.limits_s.values()) == {9}
    assert "probe" not in device.passes()


def test_a_probe_that_hangs_ends_the_run(setting: Setting, device: Emulated) -> None:
    ended = RunOutcome(None, None, "", "", 1200.0, timed_out=True)
    slow = Emulated(lambda name: ended if name == "probe" else None)
    with pytest.raises(RunError, match="1200 s") as caught:
        run(setting, slow)
    assert "benchmark.timeout_s=2400" in str(caught.value.remedy)
