"""Which of OpenVINO's files a bundle has, and what is said where there are none."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest

from etdeploy.backends.openvino import (
    OpenVinoInstallation,
    find_openvino,
    installed_in,
    named_library,
)
from etdeploy.core.errors import Blocker
from tests.support.facts import lacks
from tests.support.openvino import FILES, lay_out_openvino


class _Package:
    def __init__(self, root: Path, version: str) -> None:
        self.root, self.version = root, version

    def locate_file(self, path: str) -> Path:
        return self.root / path


def _find(
    monkeypatch: pytest.MonkeyPatch, root: Path, version: str
) -> OpenVinoInstallation | Blocker:
    monkeypatch.setattr(metadata, "distribution", lambda _: _Package(root, version))
    return find_openvino()


@pytest.mark.parametrize("version", ["2025.1.0", "2025.4.1"])
def test_the_package_is_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str
) -> None:
    folder = lay_out_openvino(tmp_path)
    found = _find(monkeypatch, tmp_path, version)
    assert isinstance(found, OpenVinoInstallation)
    assert (found.version, found.library) == (version, folder / "libopenvino_c.so.2541")


@pytest.mark.parametrize("version", ["2024.6.0", "2026.0.0", "2026.4.1"])
def test_another_release_is_refused_with_the_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str
) -> None:
    lay_out_openvino(tmp_path)
    found = _find(monkeypatch, tmp_path, version)
    assert isinstance(found, Blocker)
    assert not lacks(found.why, f"OpenVINO {version}", ">=2025.1,<2026")
    assert found.remedy.endswith("[openvino]'")


def test_no_package_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    found = find_openvino()
    assert isinstance(found, Blocker)
    assert "is not installed" in found.why


@pytest.mark.parametrize("name", FILES)
def test_every_library_of_a_run_is_wanted(tmp_path: Path, name: str) -> None:
    folder = lay_out_openvino(tmp_path)
    (folder / name).unlink()
    found = installed_in(folder, "2025.4.1")
    assert isinstance(found, Blocker)
    assert name.startswith(found.why.rpartition(" ")[2])


def test_a_damaged_package_is_to_be_installed_again(tmp_path: Path) -> None:
    folder = lay_out_openvino(tmp_path)
    (folder / "libtbb.so.12").unlink()
    (folder / "libopenvino_intel_cpu_plugin.so").unlink()
    found = installed_in(folder, "2025.4.1")
    assert isinstance(found, Blocker)
    assert found.why.endswith(" libopenvino_intel_cpu_plugin.so, libtbb.so")
    assert f"OpenVINO 2025.4.1 in {folder} " in found.why
    command = ["openvino==2025.4.1", "--force-reinstall", "--no-deps"]
    assert found.remedy.split()[-3:] == command


def test_the_users_own_library_is_taken_as_it_is_named(tmp_path: Path) -> None:
    own = tmp_path / "libopenvino_c.so.2520"
    own.touch()
    assert named_library({}) is None
    assert named_library({"OPENVINO_LIB_PATH": ""}) is None
    assert named_library({"OPENVINO_LIB_PATH": str(own)}) == str(own)
    # The system's loader looks for a name alone.
    assert named_library({"OPENVINO_LIB_PATH": "libopenvino_c.so"}) == "libopenvino_c.so"


def test_a_library_that_does_not_exist_is_told_before_the_run(tmp_path: Path) -> None:
    found = named_library({"OPENVINO_LIB_PATH": f"{tmp_path}/libs/libopenvino_c.so"})
    assert isinstance(found, Blocker)
    assert f"OPENVINO_LIB_PATH names {tmp_path}/libs/libopenvino_c.so," in found.why
    assert found.remedy.split()[:2] == ["unset", "OPENVINO_LIB_PATH"]
