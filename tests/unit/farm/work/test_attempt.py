"""One attempt, on a device in memory: each way that it may end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from etdeploy.bench.records.stored import load_run
from etdeploy.cache.workspace import Workspace
from etdeploy.core.errors import DeviceError
from etdeploy.core.files.locks import exclusive
from etdeploy.core.values import Progress, silent
from etdeploy.devices.base import Bundle, DeviceState, PushReport, RunOutcome
from etdeploy.farm.model import AttemptResult, BuildArtifact, Fate, Gates
from etdeploy.farm.work import attempt as attempt_module
from etdeploy.farm.work.artifact import GATE, HOST, IN_USE
from etdeploy.farm.work.attempt import attempt
from tests.support.bench_device import FakeDevice
from tests.support.parcels import REVISION, make_artifact, make_offer, make_order

EXPECTED = bytes(range(32))
NO_WAIT = Gates(wait_s=0.0)


@pytest.fixture
def artifact(tmp_path: Path) -> BuildArtifact:
    return make_artifact(tmp_path, Workspace.opened(), benchmark={"runs": 2, "iterations": 3})


Attempt = Callable[..., AttemptResult]


@pytest.fixture
def attempted(artifact: BuildArtifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Attempt:
    """Attempts it on a device; a folder of another artifact may be named."""

    def run(device: FakeDevice, **changes: Any) -> AttemptResult:
        monkeypatch.setattr(attempt_module, "open_device", lambda *_: device)
        order = make_order(artifact, **({"gates": NO_WAIT} | changes))
        return attempt(order, Path(artifact.folder), tmp_path / "out")

    return run


def fake(**changes: Any) -> FakeDevice:
    values: dict[str, Any] = {"outputs": (EXPECTED,), "shape": (2, 4)}
    return FakeDevice(**(values | changes))


def test_a_measurement(attempted: Attempt, tmp_path: Path) -> None:
    ending = attempted(fake())
    assert (ending.fate, ending.failure, ending.visit) == (Fate.DONE, None, "n1-1")
    assert (ending.identity, ending.host) == ("android:FAKE", "box")
    assert ending.record is not None
    run = load_run(Path(ending.record))
    assert run.record.run_id == ending.run_id
    assert run.folder.parent == tmp_path / "out"
    # The recipe's folder need not be on this host, nor git.
    assert run.record.recipe.git_revision == REVISION.commit
    assert ending.health is not None
    assert ending.health.battery_percent == 79


def test_outputs_that_differ_are_told_and_count(attempted: Attempt) -> None:
    ending = attempted(fake(outputs=(b"\0\0\x80\x3f" * 8,)))
    assert ending.fate is Fate.DONE
    assert ending.record is not None
    assert ending.failure is not None
    assert (ending.failure.kind, ending.failure.exit_code) == ("outputs differ", 8)


def test_a_device_that_goes_away(attempted: Attempt) -> None:
    def leave(_name: str) -> RunOutcome | None:
        raise DeviceError("the device went away", place="android:FAKE", remedy="Plug it in.")

    ending = attempted(fake(answer=leave))
    assert (ending.fate, ending.health) == (Fate.FAILED, None)
    assert ending.failure is not None
    assert ending.failure.kind == "device"
    assert (ending.failure.place, ending.failure.remedy) == ("android:FAKE", "Plug it in.")


def test_another_device_by_the_same_name(attempted: Attempt) -> None:
    ending = attempted(fake(), offer=make_offer(identity="android-OTHER"))
    assert ending.fate is Fate.FAILED
    assert ending.failure is not None
    assert ending.failure.kind == "device"
    assert "android:FAKE, not android-OTHER" in ending.failure.message


def test_a_gate_that_stays_closed(attempted: Attempt) -> None:
    device = fake()
    ending = attempted(device, gates=Gates(battery_percent=90, wait_s=0.0))
    assert ending.fate is Fate.PUT_OFF
    assert ending.failure is not None
    assert ending.failure.kind == GATE
    assert "80 % (at least 90 %)" in ending.failure.message
    assert ending.health is not None
    assert device.run_ids == []


def test_a_gate_that_closes_during_the_push(
    attempted: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = fake()
    warm: list[float] = []

    def push(bundle: Bundle, progress: Progress = silent) -> PushReport:
        warm.append(50.0)
        return PushReport(0, 0, len(bundle.files), 0.0)

    monkeypatch.setattr(device, "push", push)
    monkeypatch.setattr(
        device, "state", lambda: DeviceState(battery_celsius=warm[0] if warm else 20.0)
    )
    ending = attempted(device, gates=Gates(temperature_celsius=40.0, wait_s=0.0))
    assert ending.fate is Fate.PUT_OFF
    assert device.run_ids == []


def test_a_device_that_another_run_uses(attempted: Attempt) -> None:
    lock = Workspace.default().lock_path("device", "android:FAKE")
    with exclusive(lock, "device"):
        ending = attempted(fake())
    assert ending.fate is Fate.PUT_OFF
    assert ending.failure is not None
    assert ending.failure.kind == IN_USE
    assert "another run uses device android:FAKE" in ending.failure.message


def test_a_damaged_artifact(attempted: Attempt, artifact: BuildArtifact) -> None:
    path = Path(artifact.folder) / "program" / "program.pte"
    path.unlink()
    ending = attempted(fake())
    assert ending.fate is Fate.FAILED
    assert ending.failure is not None
    assert (ending.failure.kind, ending.failure.place) == (HOST, str(path))
