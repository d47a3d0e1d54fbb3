"""Whether Qualcomm's compiler can be loaded on this machine, and what doctor shows."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from etdeploy.backends.qnn.kits import findings
from etdeploy.backends.qnn.kits.compile import CompileKit, find_compile_kit
from etdeploy.backends.qnn.kits.findings import examine_qnn
from etdeploy.backends.qnn.kits.loading import (
    compile_environment,
    loader_problem,
    loading_problem,
)
from etdeploy.backends.values import Workstation
from etdeploy.core.processes import process
from etdeploy.export.installed import tool_versions
from etdeploy.export.spec import export_spec
from etdeploy.recipe.model import Recipe
from tests.support.qnn_sdk import lay_out_sdk

HTP = Path("/sdk/lib/x86_64-linux-clang/libQnnHtp.so")


@pytest.fixture
def kit(tmp_path: Path) -> CompileKit:
    root = lay_out_sdk(tmp_path / "sdk")
    found = find_compile_kit(Workstation({"QNN_SDK_ROOT": str(root)}, tmp_path))
    assert isinstance(found, CompileKit)
    return found


@pytest.mark.parametrize(
    ("said", "remedy"),
    [
        ("libc++.so.1: cannot open shared object file: No such file or directory",
         "apt-get install libc++1 "),
        ("/lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.34' not found (required by x)",
         "Export on a newer Linux"),
        ("libstdc++.so.6: version `GLIBCXX_3.4.30' not found (required by x)",
         "apt-get install libstdc++6"),
        ("libQnnHtp.so: file too short", "Unpack all of the SDK again"),
        ("libQnnHtp.so: undefined symbol: QnnInterface_getProviders", "Unpack all of the SDK"),
        ("libother.so: cannot open shared object file", f"See what is missing: ldd {HTP}"),
    ],
)  # fmt: skip
def test_what_the_loader_says(said: str, remedy: str) -> None:
    problem = loader_problem(HTP, f"Traceback (most recent call last):\nOSError: {said}\n")
    assert problem.why == f"{HTP} cannot be loaded: {said}"
    assert problem.remedy.startswith(remedy)


def test_a_loader_that_says_nothing() -> None:
    assert loader_problem(HTP, "").why == f"{HTP} cannot be loaded: it printed nothing"


@pytest.mark.usefixtures("real_processes")
def test_a_compiler_that_is_no_library(kit: CompileKit) -> None:
    problem = loading_problem(kit, {})
    assert problem is not None
    assert problem.why.startswith(f"{kit.libraries}/libQnnHtp.so cannot be loaded: ")


def test_the_sdks_libraries_come_first(kit: CompileKit) -> None:
    libraries = str(kit.libraries)
    assert compile_environment(kit, {}) == {
        "QNN_SDK_ROOT": str(kit.root),
        "LD_LIBRARY_PATH": libraries,
    }
    before = compile_environment(kit, {"LD_LIBRARY_PATH": "/opt/lib"})
    assert before["LD_LIBRARY_PATH"] == f"{libraries}:/opt/lib"


def test_doctor_without_an_sdk(tmp_path: Path) -> None:
    (finding,) = examine_qnn(Workstation({}, tmp_path))
    assert (finding.name, finding.state, finding.found) == ("QNN compiler", "optional", None)
    assert finding.remedy is not None
    assert finding.remedy.startswith("onnxruntime-qnn is not installed, QNN_SDK_ROOT is not set")


@pytest.mark.parametrize(("version", "shown"), [("12.2.0", True), ("13.3.0", False), ("", True)])
def test_doctor_with_an_sdk(
    kit: CompileKit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, shown: bool
) -> None:
    compiler = tmp_path / "g++"
    compiler.write_text(f"#!/bin/sh\necho {version}\n")
    compiler.chmod(0o755)
    monkeypatch.setattr(process, "which", lambda _: compiler)
    station = Workstation({"QNN_SDK_ROOT": str(kit.root)}, tmp_path)
    monkeypatch.setattr(findings, "loading_problem", lambda *_: None)
    found = {f.name: f for f in examine_qnn(station)}
    assert found["QNN SDK"].found == f"2.37.0 in {kit.root} (HTP V66 to V79)"
    assert found["QNN compiler"].state == "ok"
    assert ("g++ 13" in found) == shown


def test_doctor_says_when_the_sdk_is_not_the_tested_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = lay_out_sdk(tmp_path / "sdk", "2.42.0.260101000000", ("V75", "V81"))
    monkeypatch.setattr(process, "which", lambda _: None)
    monkeypatch.setattr(sys, "platform", "linux")
    problem = loader_problem(HTP, "OSError: libc++.so.1: cannot open shared object file")
    monkeypatch.setattr(findings, "loading_problem", lambda *_: problem)
    second, first, _ = examine_qnn(Workstation({"QNN_SDK_ROOT": str(root)}, tmp_path))
    assert first.found == f"2.42.0 in {root} (HTP V75 to V81, ExecuTorch's is 2.37.0.250724)"
    assert (second.state, second.found) == ("optional", None)
    assert second.remedy == f"{problem.why}.\n{problem.remedy}"


def test_another_sdk_makes_another_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = {"model": {"example": "mlp"}, "export": {"backend": "qnn", "soc": "SM8750"}}
    spec = export_spec(Recipe.model_validate(recipe))
    versions = []
    for version in ("2.37.0.250724175447", "2.42.0.260101000000"):
        root = lay_out_sdk(tmp_path / version, version)
        monkeypatch.setenv("QNN_SDK_ROOT", str(root))
        versions.append(tool_versions(spec)["qnn"])
    assert versions == ["2.37.0.250724175447", "2.42.0.260101000000"]
    assert "qnn" not in tool_versions(spec.model_copy(update={"backend": "xnnpack"}))
