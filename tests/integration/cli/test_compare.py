"""Two recipes in turns, with a real export, runner and device."""

from __future__ import annotations

import re
import signal
import time
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from etdeploy.bench.records.record import Inference
from etdeploy.bench.records.stored import StoredRun, load_run
from etdeploy.cache.workspace import Workspace
from tests.support.adbd import (  # noqa: F401 - fixtures
    AdbServer,
    AndroidRoot,
    adb_server,
    android_x86_64,
    make_android,
)
from tests.support.cli import Cli
from tests.support.export import export_workspace  # noqa: F401 - a fixture

pytestmark = pytest.mark.integration

_MLP = "model: {example: mlp}\nexport: {backend: xnnpack}\nbenchmark: {iterations: 5, warmup: 1}\n"
_ONE_THREAD = ("--set-b", "runtime.threads=1")


@pytest.fixture
def cli(export_workspace: Workspace, tmp_path: Path) -> Cli:  # noqa: F811
    (tmp_path / "mlp.yaml").write_text(_MLP)
    return Cli(export_workspace.root, tmp_path, {})


def _runs(found: dict[str, Any]) -> tuple[StoredRun, StoredRun]:
    return load_run(Path(found["a"]["record"])), load_run(Path(found["b"]["record"]))


def test_two_recipes_take_turns_and_leave_two_records(cli: Cli) -> None:
    result = cli.ok("compare", "mlp.yaml", *_ONE_THREAD, "--runs", "3", "--json")
    a, b = _runs(result.json)
    assert (a.record.interleaved_with, b.record.interleaved_with) == (
        b.record.run_id,
        a.record.run_id,
    )
    assert b.record.runner.threads == 1
    assert [len(run.record.workload.runs) for run in (a, b)] == [3, 3]
    found = result.json
    assert [pair["a_ms"] for pair in found["pairs"]] == _of_starts(a, found["statistic"])
    assert found["verdict"] in ("faster", "slower", "no difference found")
    assert any(text.startswith("runtime.threads") for text in found["differences"])
    assert [output["max_abs_error"] for output in found["outputs"]] == [0.0]
    _turns_are_told(result.stderr)
    # What was measured in turns can be compared again, with the same result.
    again = cli.ok("compare", a.record.run_id, "last", "--no-operators", "--json").json
    assert (again["ratio"], again["pairs"]) == (found["ratio"], found["pairs"])


def _of_starts(run: StoredRun, statistic: str) -> list[float]:
    """What stands for each start: its median or, where other work ran, its fastest inference."""
    workload = run.record.workload
    assert isinstance(workload, Inference)
    starts, samples = workload.runs, iter(workload.latency_ms.samples)
    if statistic == "median":
        return [start.median_ms for start in starts]
    return [min(islice(samples, start.samples)) for start in starts]


def _turns_are_told(stderr: str) -> None:
    lines = [line.split() for line in stderr.splitlines() if "timing pass" in line]
    assert [line[1] for line in lines] == ["A:", "B:", "B:", "A:", "A:", "B:"]


def test_what_one_side_cannot_do_ends_it_before_anything_is_measured(cli: Cli) -> None:
    result = cli("compare", "mlp.yaml", "--set-b", "runtime.provider=source", "--runs", "2")
    assert result.code != 0
    assert "mlp (B) on host" in result.stderr
    assert not list((cli.folder / "etdeploy-out").glob("2*"))


def test_a_stop_between_the_starts_leaves_nothing(cli: Cli) -> None:
    long = ("--set", "benchmark.iterations=1000000", "--set", "benchmark.warmup=0")
    started = cli.start("compare", "mlp.yaml", *_ONE_THREAD, *long, "--runs", "3")
    output = cli.folder / "etdeploy-out"
    # It may wait for another run that uses this machine.
    while len(list(output.glob("2*"))) < 2:
        assert started.poll() is None
        time.sleep(0.05)
    started.send_signal(signal.SIGINT)
    _, stderr = started.communicate()
    assert started.returncode == 130, stderr
    assert list(output.glob("2*")) == []


def test_two_recipes_take_turns_on_a_phone(
    cli: Cli,
    adb_server: AdbServer,  # noqa: F811
    android_x86_64: AndroidRoot,  # noqa: F811
) -> None:
    adb_server.connect(android_x86_64)
    # Starts on a device that throttles are no pairs.
    thermal = android_x86_64.path("mnt/dumpsys-thermalservice").read_text()
    android_x86_64.write(
        "dumpsys-thermalservice", re.sub(r"Thermal Status: \d", "Thermal Status: 0", thermal)
    )
    options = ("--device", "android", "--runs", "2", "--no-operators", "--json")
    found = cli.ok("compare", "mlp.yaml", *_ONE_THREAD, *options).json
    a, b = _runs(found)
    assert {run.record.device.facts.kind for run in (a, b)} == {"android"}
    assert len(found["pairs"]) == 2
