"""Which compiler is used: the user's SDK, Qualcomm's package, or ExecuTorch's downloads."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from etdeploy.backends.qnn import compiler
from etdeploy.backends.qnn.compiler import CompileKit, compile_problem, find_compile_kit
from etdeploy.backends.qnn.loading import compile_environment, lay_out
from etdeploy.backends.values import Workstation
from etdeploy.core.errors import Blocker
from tests.support.facts import lacks
from tests.support.qnn_sdk import lay_out_sdk


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


def test_the_users_sdk_comes_first(installed: Path, tmp_path: Path) -> None:
    root = lay_out_sdk(tmp_path / "qairt")
    assert kit(tmp_path, QNN_SDK_ROOT=str(root)).root == root


def test_a_compiler_that_is_newer_than_the_phones_libraries_comes_last(
    installed: Path, tmp_path: Path
) -> None:
    root = download(tmp_path, "2.37.0.250724175447")
    assert kit(tmp_path).root == root
    assert kit(tmp_path, "SM8750").root == root
    # 2.37 does not compile for it.
    assert kit(tmp_path, "SM8850").libraries == installed


def test_a_newer_download_does_not_replace_the_package(installed: Path, tmp_path: Path) -> None:
    download(tmp_path, "2.50.40.260901000000")
    assert kit(tmp_path).libraries == installed


def test_for_executorch_the_package_looks_like_an_sdk(
    installed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = kit(tmp_path)
    lay_out(found)
    note = capsys.readouterr().err
    assert not lacks(note, "AI Stack licence", f"{installed}/Qualcomm_LICENSE.pdf\n")
    lay_out(found)
    assert capsys.readouterr().err == ""
    environment = compile_environment(found, {})
    root = Path(environment["QNN_SDK_ROOT"])
    assert (root / "lib/x86_64-linux-clang/libQnnHtp.so").samefile(installed / "libQnnHtp.so")
    assert " 2.49.40.260810104044" in (root / "sdk.yaml").read_text()
    assert environment["LD_LIBRARY_PATH"] == str(installed)
    # Of Qualcomm's files, none is copied.
    assert (root / "lib/x86_64-linux-clang").is_symlink()
    (root / "lib/x86_64-linux-clang").unlink()
    lay_out(found)
    assert capsys.readouterr().err
    assert (root / "lib/x86_64-linux-clang/libQnnHtp.so").is_file()


def test_another_release_is_refused(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler, "_installed", lambda *_: ("2.7.0", installed.parent))
    problem = blocker(tmp_path)
    assert not lacks(problem.why, "onnxruntime-qnn 2.7.0", "==2.5.0")
    assert "[qnn]'" in problem.remedy


@pytest.mark.parametrize(
    ("system", "told"), [("glibc 2.34", "has glibc 2.34"), ("", "another C library")]
)
def test_a_c_library_that_does_not_do(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: str, told: str
) -> None:
    monkeypatch.setattr(compiler, "_c_library", lambda: system)
    problem = blocker(tmp_path)
    assert not lacks(problem.why, "glibc 2.35 or newer", told)


@pytest.mark.parametrize("name", ["onnxruntime_qnn/libQnnSystem.so", "onnxruntime_qnn.libs/libc++"])
def test_a_package_that_lacks_files(installed: Path, tmp_path: Path, name: str) -> None:
    for path in installed.parent.glob(f"{name}*"):
        path.unlink()
    problem = blocker(tmp_path)
    assert f" 2.5.0 in {installed.parent} lacks {name}" in problem.why
    assert "onnxruntime-qnn==2.5.0" in problem.remedy
    assert problem.remedy.split()[-2:] == ["--force-reinstall", "--no-deps"]


def test_python_3_10_cannot_have_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler, "runs_here", lambda: True)
    monkeypatch.setattr(sys, "version_info", (3, 10, 12))
    assert not lacks(blocker(tmp_path).remedy, "Python 3.11 or newer", "is Python 3.10")


def test_an_sdk_that_executorch_cannot_use(installed: Path, tmp_path: Path) -> None:
    root = lay_out_sdk(tmp_path / "qairt", "2.51.0.260929181845")
    # Its libraries load what the package compiles.
    assert kit(tmp_path, QNN_SDK_ROOT=str(root)).libraries == installed


def test_an_sdk_that_executorch_cannot_use_and_no_package(tmp_path: Path) -> None:
    root = lay_out_sdk(tmp_path / "qairt", "2.51.0.260929181845")
    found = kit(tmp_path, QNN_SDK_ROOT=str(root))
    assert found.root == root
    problem = compile_problem(found)
    assert problem is not None
    assert f"QNN 2.51.0 in {root} reject" in problem.why
    assert "[qnn]'" in problem.remedy


def test_ones_own_build_of_executorch_may_have_other_headers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = lay_out_sdk(tmp_path / "qairt", "2.51.0.260929181845")
    monkeypatch.setattr(compiler, "_installed", lambda *_: ("1.6.0a0+5b1c2d3", tmp_path))
    assert compile_problem(kit(tmp_path, QNN_SDK_ROOT=str(root))) is None


def test_a_package_for_another_processor_does_not_compile(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler, "runs_here", lambda: False)
    assert "on Linux x86_64" in blocker(tmp_path).remedy
