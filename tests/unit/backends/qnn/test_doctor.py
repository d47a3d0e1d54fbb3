"""What doctor shows of QNN."""

from __future__ import annotations

from pathlib import Path

import pytest

from etdeploy.backends.qnn import loading
from etdeploy.backends.qnn.loading import examine_qnn
from etdeploy.backends.values import Workstation
from etdeploy.core.errors import Blocker
from etdeploy.core.processes import process
from etdeploy.core.values import DoctorCheck
from tests.support.facts import lacks
from tests.support.qnn_sdk import lay_out_aar, lay_out_sdk


@pytest.fixture
def loadable(monkeypatch: pytest.MonkeyPatch) -> None:
    """No process tries whether the compiler can be loaded, and there is no g++."""
    monkeypatch.setattr(loading, "loading_problem", lambda *_: None)
    monkeypatch.setattr(process, "which", lambda _: None)


def shown(home: Path, **environ: object) -> dict[str, DoctorCheck]:
    station = Workstation({k: str(v) for k, v in environ.items()}, home)
    return {finding.name: finding for finding in examine_qnn(station)}


def test_nothing_is_here(tmp_path: Path) -> None:
    (finding,) = shown(tmp_path).values()
    assert (finding.name, finding.state, finding.found) == ("QNN compiler", "optional", None)
    assert finding.remedy is not None
    assert not lacks(finding.remedy, "onnxruntime-qnn is not", "QNN_SDK_ROOT is not")


@pytest.mark.usefixtures("loadable")
def test_the_package_alone(installed: Path, tmp_path: Path) -> None:
    found = shown(tmp_path)
    assert not lacks(found["QNN compiler"].found, "QNN 2.49.40", "onnxruntime-qnn 2.5.0")
    assert found["QNN for phones"].found is None
    assert "qnn-runtime" in (found["QNN for phones"].remedy or "")
    headers = found["QNN headers"]
    assert (headers.state, headers.found) == ("optional", None)
    assert "headers" in (headers.remedy or "")


@pytest.mark.usefixtures("loadable")
def test_the_package_and_an_older_archive(installed: Path, tmp_path: Path) -> None:
    aar = lay_out_aar(tmp_path / "a.aar", "2.44.0.260101000000")
    found = shown(tmp_path, QNN_RUNTIME_AAR=aar)
    assert not lacks(
        found["QNN for phones"].found,
        f"QNN 2.44.0 in {aar} ", "HTP V75 to V79", "too old", "QNN 2.49.40",
    )  # fmt: skip


@pytest.mark.usefixtures("loadable")
def test_headers_that_are_not_the_tested_ones(tmp_path: Path) -> None:
    root = lay_out_sdk(tmp_path / "sdk", "2.42.0.260101000000", ("V75", "V81"))
    found = shown(tmp_path, QNN_SDK_ROOT=root)
    assert not lacks(found["QNN headers"].found, f"QNN 2.42.0 in {root} ", "2.37.0.250724)")


def test_a_compiler_that_cannot_be_loaded(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = Blocker("Qualcomm's compiler", "it cannot be loaded", "apt-get install it")
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr(loading, "loading_problem", lambda *_: problem)
    monkeypatch.setattr(process, "which", lambda _: None)
    compiler = shown(tmp_path)["QNN compiler"]
    assert (compiler.state, compiler.found) == ("optional", None)
    assert compiler.remedy == f"{problem.why}\n{problem.remedy}"


@pytest.mark.parametrize(("version", "told"), [("12.2.0", True), ("13.3.0", False), ("", True)])
def test_the_host_compiler(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, told: bool
) -> None:
    compiler = tmp_path / "g++"
    compiler.write_text(f"#!/bin/sh\necho {version}\n")
    compiler.chmod(0o755)
    monkeypatch.setattr(loading, "loading_problem", lambda *_: None)
    monkeypatch.setattr(process, "which", lambda _: compiler)
    assert ("g++ 13" in shown(tmp_path)) == told
