"""Unpacking a wheel, reading what it carries, and telling when it changed."""

from __future__ import annotations

import re
import stat
import zipfile
from pathlib import Path

import pytest

from etdeploy.cache.folder import CacheKind
from etdeploy.cache.workspace import Workspace
from etdeploy.core.errors import BuildError
from etdeploy.core.hashing import sha256_file
from etdeploy.provider.wheel import (
    _INFO,
    WheelRuntime,
    _entry,
    executorch_version,
    known_wheel,
    obtain_wheel,
    read_components,
    unpack_wheel,
    wheel_problem,
)
from etdeploy.targets.platforms import find_target

_WANTED = (
    "executorch/include/executorch/runtime/core/error.h",
    "executorch/lib/libexecutorch.so",
    "executorch/lib/libexecutorch_backend_xnnpack.so",
    "executorch/share/cmake/executorch-config.cmake",
    "executorch-1.5.1.dist-info/RECORD",
)


def _wheel(folder: Path, *names: str | zipfile.ZipInfo) -> Path:
    path = folder / "executorch-1.5.1-cp311-cp311-manylinux_2_28_aarch64.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, "content")
    return path


def _files(folder: Path) -> set[str]:
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}


def test_only_what_cpp_needs_is_unpacked(tmp_path: Path) -> None:
    wheel = _wheel(tmp_path, *_WANTED, "executorch/exir/__init__.py", "executorch/data/bin/flatc")
    unpack_wheel(wheel, tmp_path / "out")
    assert _files(tmp_path / "out") == set(_WANTED)


@pytest.mark.parametrize(
    "name", ["executorch/lib/../../../evil.so", "executorch/include/../../../../etc/evil"]
)
def test_entry_that_leads_out_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(BuildError, match="outside its folder"):
        unpack_wheel(_wheel(tmp_path, name), tmp_path / "a" / "out")
    assert not list(tmp_path.rglob("evil*"))


def test_symbolic_link_is_refused(tmp_path: Path) -> None:
    link = zipfile.ZipInfo("executorch/lib/libevil.so")
    link.create_system = 3
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with pytest.raises(BuildError, match="not a plain file"):
        unpack_wheel(_wheel(tmp_path, link), tmp_path / "out")


def test_truncated_wheel_is_told(tmp_path: Path) -> None:
    wheel = _wheel(tmp_path, *_WANTED)
    wheel.write_bytes(wheel.read_bytes()[:200])
    with pytest.raises(BuildError, match="is damaged") as raised:
        unpack_wheel(wheel, tmp_path / "out")
    assert raised.value.exit_code == 4


def test_components_are_read_from_the_libraries(tmp_path: Path) -> None:
    unpack_wheel(
        _wheel(
            tmp_path,
            *_WANTED,
            "executorch/lib/libexecutorch_etdump.dylib",
            "executorch/lib/mlx.metallib",
        ),
        tmp_path,
    )
    assert read_components(tmp_path / "executorch") == ("backend_xnnpack", "etdump", "runtime")


def test_folder_without_a_cmake_package_has_no_components(tmp_path: Path) -> None:
    unpack_wheel(_wheel(tmp_path, "executorch/lib/libexecutorch.so"), tmp_path)
    assert read_components(tmp_path / "executorch") == ()


def _cached(workspace: Workspace) -> WheelRuntime:
    entry = workspace.entry(CacheKind.WHEELS, "executorch-1.5.1-manylinux_2_28_aarch64")

    def build(folder: Path) -> None:
        (folder / "executorch/lib").mkdir(parents=True)
        (folder / "executorch/lib/libexecutorch.so").write_text("library")

    workspace.obtain(entry, build)
    return WheelRuntime(
        root=str(entry.path / "executorch"),
        version="1.5.1",
        target="linux-aarch64",
        sha256="0" * 64,
        origin="fetched",
        components=("runtime",),
    )


def test_damaged_cached_wheel_is_noticed(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    wheel = _cached(workspace)
    assert wheel_problem(wheel, workspace) is None
    (Path(wheel.root) / "lib/libexecutorch.so").write_text("other!!")
    assert wheel_problem(wheel, workspace) == (
        "the cached ExecuTorch libraries are damaged or gone"
    )


def test_moved_cache_is_noticed(tmp_path: Path) -> None:
    wheel = _cached(Workspace(tmp_path / "one"))
    assert wheel_problem(wheel, Workspace(tmp_path / "two")) == "the cache is in another folder now"


def test_changed_installation_is_noticed(tmp_path: Path) -> None:
    record = tmp_path / "executorch-1.5.1.dist-info" / "RECORD"
    record.parent.mkdir()
    record.write_text("executorch/lib/libexecutorch.so,sha256=abc,3\n")
    wheel = WheelRuntime(
        root=str(tmp_path / "executorch"),
        version="1.5.1",
        target="linux-x86_64",
        sha256=sha256_file(record),
        origin="installed",
        components=("runtime",),
    )
    assert wheel_problem(wheel, Workspace(tmp_path)) is None
    record.write_text("executorch/lib/libexecutorch.so,sha256=def,3\n")
    assert wheel_problem(wheel, Workspace(tmp_path)) == "the installed ExecuTorch has changed"


def test_target_without_a_wheel_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="ios-arm64"):
        obtain_wheel(find_target("ios-arm64"), find_target("linux-x86_64"), Workspace(tmp_path))


def test_version_is_the_one_that_export_pins() -> None:
    pyproject = (Path(__file__).resolve().parents[3] / "pyproject.toml").read_text()
    assert re.findall(r"executorch==([\d.]+)", pyproject) == [executorch_version()]


def test_libraries_in_the_cache_are_known_without_fetching(tmp_path: Path) -> None:
    workspace, host = Workspace(tmp_path / "cache"), find_target("linux-x86_64")
    target = find_target("linux-aarch64")
    assert known_wheel(target, host, workspace) is None
    assert known_wheel(find_target("ios-arm64"), host, workspace) is None
    entry = _entry(str(target.wheel_platform), workspace)

    def fetch(folder: Path) -> None:
        WheelRuntime(
            root="executorch", version="1.5.1", target=target.name, sha256="0" * 64,
            origin="fetched", components=("runtime",),
        ).save(folder / _INFO)  # fmt: skip

    workspace.obtain(entry, fetch)
    known = known_wheel(target, host, workspace)
    assert known
    assert known.root == str(entry.path / "executorch")
    assert obtain_wheel(target, host, workspace) == known
