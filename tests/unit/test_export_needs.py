"""What is refused before anything starts, and how to get it."""

from __future__ import annotations

import platform
import sys
from pathlib import Path
from typing import Any

import pytest

from etdeploy.core.errors import ExportError
from etdeploy.export import needs
from etdeploy.export.needs import check_needs
from etdeploy.export.spec import ExportSpec, export_spec
from etdeploy.recipe.backends import BACKENDS
from etdeploy.recipe.model import Recipe

ALL = {"torch": "2.13.0", "executorch": "1.5.1", "torchao": "0.18.0", "coremltools": "9.0"}


def spec_of(model: dict[str, Any] | None = None, **export: Any) -> ExportSpec:
    recipe = {"model": model or {"example": "mlp"}, "export": export}
    return export_spec(Recipe.model_validate(recipe))


@pytest.fixture
def packages(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The installed packages, to take some away."""
    present = dict(ALL)
    monkeypatch.setattr(needs, "installed_version", present.get)
    return present


@pytest.fixture
def linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")


def refusal(spec: ExportSpec, environment: dict[str, str] | None = None) -> ExportError:
    with pytest.raises(ExportError) as caught:
        check_needs(spec, environment or {})
    return caught.value


def test_nothing_is_missing(packages: dict[str, str]) -> None:
    check_needs(spec_of(), {})
    check_needs(spec_of(quantization="8da4w"), {})
    check_needs(spec_of(backend="vulkan"), {})
    check_needs(spec_of(backend="coreml"), {})


@pytest.mark.parametrize(
    ("missing", "named"),
    [
        (("executorch",), "executorch is"),
        (("torch", "executorch"), "torch and executorch are"),
    ],
)
def test_missing_packages(packages: dict[str, str], missing: tuple[str, ...], named: str) -> None:
    for name in missing:
        del packages[name]
    error = refusal(spec_of())
    assert error.message == (
        f"exporting a model needs PyTorch and ExecuTorch; {named} not installed for "
        f"{sys.executable}"
    )
    assert error.remedy == 'pip install "etdeploy[export]"'


def test_a_finished_program_needs_no_package(packages: dict[str, str], tmp_path: Path) -> None:
    packages.clear()
    (tmp_path / "m.pte").touch()
    check_needs(spec_of({"program": str(tmp_path / "m.pte")}), {})


def test_core_ml_needs_coremltools(packages: dict[str, str]) -> None:
    del packages["coremltools"]
    assert refusal(spec_of(backend="coreml")).remedy == "pip install coremltools"


def test_files_that_are_not_there(packages: dict[str, str], tmp_path: Path) -> None:
    absent = refusal(spec_of({"program": str(tmp_path / "m.pte")}))
    assert str(absent) == f"model.program {tmp_path / 'm.pte'}: the file does not exist"
    folder = refusal(spec_of({"exported": str(tmp_path)}))
    assert str(folder) == f"model.exported {tmp_path}: the file is a folder, not a file"


@pytest.mark.usefixtures("linux", "packages")
def test_qnn_needs_its_sdk() -> None:
    error = refusal(spec_of(backend="qnn"))
    assert error.message == (
        "the backend qnn needs the Qualcomm AI Engine Direct SDK (QNN) 2.37 or newer, on Linux "
        "x86_64; QNN_SDK_ROOT is not set"
    )
    assert error.remedy == BACKENDS["qnn"].get


@pytest.mark.usefixtures("linux", "packages")
def test_qnn_with_a_variable_that_leads_nowhere(tmp_path: Path) -> None:
    error = refusal(spec_of(backend="qnn"), {"QNN_SDK_ROOT": str(tmp_path)})
    library = tmp_path / "lib/x86_64-linux-clang/libQnnHtp.so"
    assert error.message == f"QNN_SDK_ROOT does not lead to the QNN SDK: there is no {library}"


@pytest.mark.usefixtures("linux", "packages")
def test_qnn_compiles_for_a_soc_that_is_known(tmp_path: Path) -> None:
    libraries = tmp_path / "lib/x86_64-linux-clang"
    libraries.mkdir(parents=True)
    (libraries / "libQnnHtp.so").touch()
    environment = {"QNN_SDK_ROOT": str(tmp_path)}
    error = refusal(spec_of(backend="qnn"), environment)
    assert error.message == ("a qnn program is compiled for one SoC, and no device has told which")
    assert error.remedy == (
        "Name a device with --device android, or the SoC with --set export.soc=SM8650"
    )
    check_needs(spec_of(backend="qnn", soc="SM8650"), environment)


@pytest.mark.usefixtures("packages")
def test_qnn_is_refused_on_a_mac(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    error = refusal(spec_of(backend="qnn"), {"QNN_SDK_ROOT": "/sdk"})
    assert error.message.endswith("on Linux x86_64; this is darwin arm64")
