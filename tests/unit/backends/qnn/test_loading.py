"""Whether Qualcomm's compiler can be loaded on this machine, and with which environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from etdeploy.backends.qnn.compiler import CompileKit, find_compile_kit
from etdeploy.backends.qnn.loading import (
    compile_environment,
    loader_problem,
    loading_problem,
)
from etdeploy.backends.values import Workstation
from etdeploy.export.cache import tool_versions
from etdeploy.export.derive import export_spec
from etdeploy.recipe.model import Recipe
from tests.support.facts import lacks
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
    assert problem.why.startswith(f"{HTP} ")
    assert problem.why.endswith(f": {said}")
    assert problem.remedy.startswith(remedy)


def test_a_loader_that_says_nothing() -> None:
    assert not lacks(loader_problem(HTP, "").why, f"{HTP} ", "printed nothing")


@pytest.mark.usefixtures("real_processes")
def test_a_compiler_that_is_no_library(kit: CompileKit) -> None:
    problem = loading_problem(kit, {})
    assert problem is not None
    assert problem.why.startswith(f"{kit.libraries}/libQnnHtp.so ")


def test_the_sdks_libraries_come_first(kit: CompileKit) -> None:
    libraries = str(kit.libraries)
    assert compile_environment(kit, {}) == {
        "QNN_SDK_ROOT": str(kit.root),
        "LD_LIBRARY_PATH": libraries,
    }
    before = compile_environment(kit, {"LD_LIBRARY_PATH": "/opt/lib"})
    assert before["LD_LIBRARY_PATH"] == f"{libraries}:/opt/lib"


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


def test_a_package_that_cannot_be_loaded_is_installed_again() -> None:
    problem = loader_problem(HTP, "OSError: libQnnHtp.so: file too short", "pip install it")
    assert problem.remedy == "pip install it"
    missing = loader_problem(HTP, "OSError: libc++.so.1: cannot open", "pip install it")
    assert missing.remedy.startswith("apt-get install libc++1")
