"""Qualcomm's simulator on this machine: where it runs programs, from where, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from etdeploy.backends.qnn.backend import QNN
from etdeploy.backends.values import (
    CompiledFor,
    Destination,
    ExportRequest,
    Partitions,
    PlannedRun,
    Simulated,
    Workstation,
)
from etdeploy.core.errors import BuildError
from etdeploy.targets.platforms import TARGETS, find_target
from tests.support.facts import lacks
from tests.support.qnn_sdk import lay_out_sdk

HOST = Destination(find_target("linux-x86_64"), "host", reports=True, is_here=True)
BOARD = Destination(find_target("linux-x86_64"), "ssh:board", reports=True)
QEMU = Destination(find_target("linux-aarch64"), "qemu", reports=True)
V75 = CompiledFor(soc_id=57, soc="SM8650", htp_arch="V75", sdk_version="2.37.0.250724175447")


def _partitions(version: str | None = "2.37.0.250724175447", finished: bool = True) -> Partitions:
    compiled = V75.model_copy(update={"sdk_version": version})
    return Partitions((compiled,), finished=finished)


@pytest.fixture
def station(installed: Path, tmp_path: Path) -> Workstation:
    """A machine with Qualcomm's package, QNN 2.49.40."""
    return Workstation({}, tmp_path)


@pytest.mark.parametrize("target", TARGETS)
def test_only_this_machines_own_runner_simulates(target: str) -> None:
    chosen = find_target(target)
    built = find_target(chosen.portable or target)
    blockers = list(QNN.target_blockers(chosen, built))
    if target == "linux-x86_64":
        assert blockers == []
    elif chosen.system in ("linux", "android"):
        assert len(blockers) == 1
    notes = list(QNN.plan_notes(PlannedRun(chosen, "", "int8_static", "SM8650")))
    assert len(notes) == (1 if target == "linux-x86_64" else 0)


def test_a_soc_has_to_be_named_where_no_phone_can_be_asked() -> None:
    blocker = QNN.device_blocker("auto", HOST)
    assert blocker is not None
    assert not lacks(blocker.why, "export.soc is auto,", "host simulates")
    assert blocker.remedy.split()[-2:] == ["--set", "export.soc=SM8650"]
    assert QNN.device_blocker("SM8650", HOST) is None
    assert QNN.device_blocker("auto", replace(HOST, reports=False)) is None


def test_shared_weights_are_refused_before_the_export() -> None:
    sharing = ExportRequest("16a8w", "SM8650", {"weight_sharing": True})
    blocker = QNN.request_blocker(sharing, 2, HOST)
    assert blocker is not None
    assert not lacks(blocker.remedy, "export.options.weight_sharing=false", "--device android")
    compiled = V75.model_copy(update={"settings": ("weight_sharing=true",)})
    (after,) = QNN.program_blockers(Partitions((compiled,), methods=2), HOST)
    assert after == blocker
    assert QNN.request_blocker(sharing, 1, HOST) is None
    assert QNN.request_blocker(replace(sharing, options={}), 2, HOST) is None
    assert QNN.request_blocker(sharing, 2, replace(HOST, reports=False)) is None
    phone = Destination(find_target("android-arm64"), "android:1", reports=True)
    assert QNN.request_blocker(sharing, 2, phone) is None


@pytest.mark.parametrize("where", [BOARD, QEMU])
def test_other_devices_with_linux_have_no_library_of_qualcomms(where: Destination) -> None:
    blocker = QNN.device_blocker("SM8650", where)
    assert blocker is not None
    assert blocker.why.endswith(f"{where.device} is neither")
    assert "export.backend=xnnpack" in blocker.remedy
    (finished,) = QNN.program_blockers(_partitions(), where)
    assert "--set" not in finished.remedy
    assert list(QNN.program_blockers(_partitions(), replace(where, reports=False))) == []


def test_the_bundle_names_the_folder_and_copies_nothing(
    station: Workstation, installed: Path
) -> None:
    extras = QNN.extras(station, HOST, _partitions())
    assert extras.files == ()
    assert dict(extras.environment) == {"LD_LIBRARY_PATH": str(installed)}
    station = replace(station, environ={"LD_LIBRARY_PATH": "/mine:/more"})
    path = QNN.extras(station, HOST, _partitions()).environment["LD_LIBRARY_PATH"]
    assert path == f"{installed}:/mine:/more"
    assert QNN.bundle_inputs(station)["LD_LIBRARY_PATH"] == path


def test_what_simulates_is_named(station: Workstation) -> None:
    assert QNN.simulated(station, HOST, _partitions()) == Simulated(
        backend="qnn", by="QNN 2.49.40", soc="SM8650"
    )
    unknown = Partitions((CompiledFor(soc_id=999),))
    found = QNN.simulated(station, HOST, unknown)
    assert found is not None
    assert found.soc is None
    phone = Destination(find_target("android-arm64"), "android:X", reports=True, soc="SM8650")
    assert QNN.simulated(station, phone, _partitions()) is None


@pytest.mark.parametrize("version", ["2.37.0.1", "2.49.40.260810104044", "2.49.99.1", None])
def test_an_older_program_is_simulated(station: Workstation, version: str | None) -> None:
    assert list(QNN.bundle_blockers(station, HOST, _partitions(version))) == []


def test_a_newer_program_is_refused_with_both_versions(station: Workstation) -> None:
    newer = _partitions("2.51.0.261001104044")
    (blocker,) = QNN.bundle_blockers(station, HOST, newer)
    assert not lacks(blocker.why, "with QNN 2.51.0,", "onnxruntime-qnn 2.5.0", "of QNN 2.49.40:")
    assert "model.program" in blocker.remedy
    with pytest.raises(BuildError, match=r"QNN 2\.51\.0"):
        QNN.extras(station, HOST, newer)


def test_a_machine_without_a_simulator_says_how_to_get_one(tmp_path: Path) -> None:
    bare = Workstation({}, tmp_path)
    (blocker,) = QNN.bundle_blockers(bare, HOST, Partitions())
    assert "[qnn]'" in blocker.remedy
    with pytest.raises(BuildError, match="onnxruntime-qnn is"):
        QNN.extras(bare, HOST, _partitions())
    assert QNN.simulated(bare, HOST, _partitions()) is None


def test_an_sdk_without_the_library_that_reads_programs_is_told(tmp_path: Path) -> None:
    root = lay_out_sdk(tmp_path / "sdk")
    (root / "lib/x86_64-linux-clang/libQnnSystem.so").unlink()
    station = Workstation({"QNN_SDK_ROOT": str(root)}, tmp_path)
    (blocker,) = QNN.bundle_blockers(station, HOST, _partitions())
    assert blocker.why.endswith(" lib/x86_64-linux-clang/libQnnSystem.so")


@pytest.mark.parametrize("finished", [True, False])
def test_methods_that_share_weights_are_refused_before_the_run(finished: bool) -> None:
    shared = V75.model_copy(update={"settings": ("precision=fp16", "weight_sharing=true")})
    several = Partitions((shared,), finished=finished, methods=2)
    (blocker,) = QNN.program_blockers(several, HOST)
    assert not lacks(blocker.why, "share weights", "simulator")
    assert blocker.remedy.endswith(" --device android")
    assert ("export.options.weight_sharing=false" in blocker.remedy) != finished
    assert ("model.program" in blocker.remedy) == finished
    # Nothing is shared with one method, and such a program runs.
    assert list(QNN.program_blockers(replace(several, methods=1), HOST)) == []
    assert list(QNN.program_blockers(replace(several, compiled=(V75,)), HOST)) == []
    phone = Destination(find_target("android-arm64"), "android:X", reports=True, soc="SM8650")
    assert list(QNN.program_blockers(several, phone)) == []
