"""Which compiler is used: the user's SDK, Qualcomm's package, or ExecuTorch's downloads."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from etdeploy.backends.qnn.kits import package
from etdeploy.backends.qnn.kits.compile import CompileKit, find_compile_kit
from etdeploy.backends.qnn.kits.loading import compile_environment
from etdeploy.backends.values import Workstation
from etdeploy.core.blocker import Blocker
from tests.support.qnn_sdk import lay_out_package, lay_out_sdk


@pytest.fixture
def libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The package's, installed."""
    site = tmp_path / "site-packages"
    monkeypatch.setattr(package, "_installed", lambda: ("2.5.0", site))
    monkeypatch.setattr(package, "_c_library", lambda: "glibc 2.35")
    return lay_out_package(site)


def kit(home: Path, soc: str | None = None, **environ: str) -> CompileKit:
    found = find_compile_kit(Workstation(environ, home), soc)
    assert isinstance(found, CompileKit), found
    return found


def blocker(home: Path, **environ: str) -> Blocker:
    found = find_compile_kit(Workstation(environ, home))
    assert isinstance(found, Blocker)
    return found


def download(home: Path, version: str) -> Path:
    return lay_out_sdk(home / ".cache/executorch/qnn" / f"sdk-{version}", version)


def test_the_package_compiles(libraries: Path, tmp_path: Path) -> None:
    found = kit(tmp_path)
    assert (found.number, found.from_) == ("2.49.40", "onnxruntime-qnn 2.5.0")
    assert found.libraries == libraries
    assert found.license == libraries / "Qualcomm_LICENSE.pdf"


def test_the_users_sdk_comes_first(libraries: Path, tmp_path: Path) -> None:
    root = lay_out_sdk(tmp_path / "qairt")
    assert kit(tmp_path, QNN_SDK_ROOT=str(root)).root == root


def test_a_compiler_that_is_newer_than_the_phones_libraries_comes_last(
    libraries: Path, tmp_path: Path
) -> None:
    root = download(tmp_path, "2.37.0.250724175447")
    assert kit(tmp_path).root == root
    assert kit(tmp_path, "SM8750").root == root
    # 2.37 does not compile for it.
    assert kit(tmp_path, "SM8850").libraries == libraries


def test_a_newer_download_does_not_replace_the_package(libraries: Path, tmp_path: Path) -> None:
    download(tmp_path, "2.50.40.260901000000")
    assert kit(tmp_path).libraries == libraries


def test_for_executorch_the_package_looks_like_an_sdk(libraries: Path, tmp_path: Path) -> None:
    found = kit(tmp_path)
    environment = compile_environment(found, {})
    root = Path(environment["QNN_SDK_ROOT"])
    assert (root / "lib/x86_64-linux-clang/libQnnHtp.so").samefile(libraries / "libQnnHtp.so")
    assert "version: 2.49.40.260810104044" in (root / "sdk.yaml").read_text()
    assert environment["LD_LIBRARY_PATH"] == str(libraries)
    # Of Qualcomm's files, none is copied.
    assert (root / "lib/x86_64-linux-clang").is_symlink()
    (root / "lib/x86_64-linux-clang").unlink()
    compile_environment(found, {})
    assert (root / "lib/x86_64-linux-clang/libQnnHtp.so").is_file()


def test_another_release_is_refused(
    libraries: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(package, "_installed", lambda: ("2.7.0", libraries.parent))
    problem = blocker(tmp_path)
    assert problem.why.startswith("onnxruntime-qnn 2.7.0 is installed, and ExecuTorch's adaptor ")
    assert "==2.5.0" in problem.why
    assert "etdeploy[qnn]" in problem.remedy


@pytest.mark.parametrize(
    ("system", "told"),
    [("glibc 2.34", "this system has glibc 2.34"), ("", "this system has another C library")],
)
def test_a_c_library_that_does_not_do(
    libraries: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: str, told: str
) -> None:
    monkeypatch.setattr(package, "_c_library", lambda: system)
    problem = blocker(tmp_path)
    assert problem.why == f"onnxruntime-qnn needs glibc 2.35 or newer, and {told}"


@pytest.mark.parametrize("name", ["onnxruntime_qnn/libQnnSystem.so", "onnxruntime_qnn.libs/libc++"])
def test_a_package_that_lacks_files(libraries: Path, tmp_path: Path, name: str) -> None:
    for path in libraries.parent.glob(f"{name}*"):
        path.unlink()
    problem = blocker(tmp_path)
    assert problem.why.startswith(f"onnxruntime-qnn 2.5.0 in {libraries.parent} lacks {name}")
    assert "onnxruntime-qnn==2.5.0" in problem.remedy
    assert problem.remedy.endswith(" --force-reinstall --no-deps")


def test_python_3_10_cannot_have_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 12))
    assert "needs Python 3.11 or newer, and this is Python 3.10" in blocker(tmp_path).remedy
