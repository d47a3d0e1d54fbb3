"""Two jobs that are interleaved on one device."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import etdeploy.bench.measure
import etdeploy.history.record_sink
from etdeploy.core.errors import DeviceError
from etdeploy.devices.base import PushReport
from etdeploy.graph import jobs as graph_jobs
from etdeploy.recipe.load import LoadedRecipe, load_recipe
from tests.unit.graph.test_jobs import FakeDevice, log

__all__ = ["log"]  # a fixture


@pytest.fixture
def recipe(tmp_path: Path) -> Callable[..., LoadedRecipe]:
    def write(name: str, *overrides: str) -> LoadedRecipe:
        path = tmp_path / f"{name}.yaml"
        path.write_text("model: {example: mlp}\nexport: {backend: portable}\n")
        return load_recipe(str(path), overrides)

    return write


def test_one_recipe_with_two_values_is_two_jobs_with_states_of_their_own(
    recipe: Any, log: list[str], tmp_path: Path
) -> None:
    a, b = recipe("mlp"), recipe("mlp", "runtime.threads=1")
    with graph_jobs.open_two(a, b, "host", tmp_path / "out") as members:
        jobs = [member.job for member in members.all if member.job]
        assert [str(m.pair) for m in members.all] == ["mlp (A) on host", "mlp (B) on host"]
        assert jobs[0].state != jobs[1].state
        assert jobs[0].device is jobs[1].device
    assert log == ["open host", "close host"]


def test_two_recipes_have_the_states_of_any_other_run(
    recipe: Any, log: list[str], tmp_path: Path
) -> None:
    with graph_jobs.open_two(recipe("a"), recipe("b"), "host", tmp_path / "out") as members:
        assert [member.job.variant for member in members.all if member.job] == ["", ""]


def test_a_device_that_is_gone_ends_it(recipe: Any, log: list[str], tmp_path: Path) -> None:
    with (
        pytest.raises(DeviceError, match="not connected"),
        graph_jobs.open_two(recipe("a"), recipe("b"), "android:gone", tmp_path / "out"),
    ):
        pass


def test_both_are_pushed_and_measured_under_one_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    class Device(FakeDevice):
        def push(self, bundle: str, _progress: Any) -> PushReport:
            calls.append(f"push {bundle}")
            return PushReport(0, 0, 1, 0.0)

    device = Device("host", "host", [])

    def job(name: str) -> Any:
        return SimpleNamespace(name=name, device=device, output=Path("out"))

    def lock(held: Any, _progress: Any) -> Any:
        calls.append(f"lock for {held.name}")
        return nullcontext()

    def measure(_device: Any, a: Any, b: Any, *_: Any) -> tuple[str, str]:
        calls.append(f"measure {a.bundle} {b.bundle}")
        return ("run a", "run b")

    monkeypatch.setattr(graph_jobs, "device_lock", lock)
    monkeypatch.setattr(graph_jobs, "prepared", lambda job: SimpleNamespace(bundle=job.name))
    monkeypatch.setattr(etdeploy.bench.measure, "measure_interleaved", measure)
    monkeypatch.setattr(
        etdeploy.history.record_sink, "save_run", lambda run: calls.append(f"keep {run}")
    )
    told: list[str] = []
    graph_jobs.run_interleaved(job("a"), job("b"), lambda text, _=None: told.append(text))
    assert calls == [
        "lock for a", "push a", "push b", "measure a b", "keep run a", "keep run b",
    ]  # fmt: skip
    assert ["1 file" in text for text in told] == [True] * 2
