"""Tools are found where they are, and a missing one is told with what brings it."""

from __future__ import annotations

from pathlib import Path

import pytest

from etdeploy.core.commands import pip_command, quoted
from etdeploy.core.errors import BuildError, require
from etdeploy.runner.toolchains import find_compiler, find_tools, probe_tools
from etdeploy.targets.platforms import find_target

_X86 = find_target("linux-x86_64")
_ARM = find_target("linux-aarch64")
_MAC = find_target("macos-arm64")


def _program(folder: Path, name: str, prints: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\necho '{prints}'\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH of one folder, a Python with nothing beside it, and none of the PyPI packages."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr("sys.executable", str(tmp_path / "python" / "python3"))
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    return folder


def _fill(folder: Path, *, cmake: str = "cmake version 3.31.6", compiler: str = "c++") -> None:
    _program(folder, "cmake", cmake)
    _program(folder, "ninja", "1.13.2")
    _program(folder, compiler, "g++ (Debian 12.2.0-14) 12.2.0")


def test_tool_beside_python_comes_first(bare: Path) -> None:
    _fill(bare)
    _program(bare.parent / "python", "cmake", "cmake version 4.0.1")
    assert require(find_tools(_X86, _X86)).cmake == bare.parent / "python" / "cmake"


def test_old_cmake_is_passed_over_for_a_new_one(bare: Path) -> None:
    _fill(bare)
    _program(bare.parent / "python", "cmake", "cmake version 3.25.1")
    assert require(find_tools(_X86, _X86)).cmake == bare / "cmake"


def test_only_an_old_cmake_is_told_with_its_version(bare: Path) -> None:
    _fill(bare, cmake="cmake version 3.25.1")
    with pytest.raises(BuildError, match=r"3\.28.*3\.25\.1"):
        require(find_tools(_X86, _X86))


@pytest.mark.parametrize(
    ("missing", "message", "remedy"),
    [
        ("cmake", "cmake 3.28", "'cmake>=3.28'"),
        ("ninja", "ninja", "'ninja>=1.11'"),
        ("c++", "C++ compiler for linux-x86_64", "apt-get install g++"),
    ],
)
def test_missing_tool_is_told_with_its_remedy(
    bare: Path, missing: str, message: str, remedy: str
) -> None:
    _fill(bare)
    (bare / missing).unlink()
    with pytest.raises(BuildError) as raised:
        require(find_tools(_X86, _X86))
    assert message in raised.value.message
    assert remedy in (raised.value.remedy or "")
    assert raised.value.exit_code == 4


@pytest.mark.parametrize(
    ("has_pip", "command"),
    [
        (True, "'/my env/bin/python3' -m pip install 'ninja>=1'"),
        (False, "uv pip install --python '/my env/bin/python3' 'ninja>=1'"),
    ],
)
def test_packages_go_to_the_python_that_runs_etdeploy(
    has_pip: bool, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", "/my env/bin/python3")
    monkeypatch.setattr("importlib.util.find_spec", lambda _: "pip" if has_pip else None)
    assert pip_command("ninja>=1") == command


def test_missing_cross_compiler_is_told_with_its_package(bare: Path) -> None:
    _fill(bare)
    for target, host, package in ((_ARM, _X86, "aarch64"), (_X86, _ARM, "x86-64")):
        with pytest.raises(BuildError) as raised:
            require(find_tools(target, host))
        assert raised.value.remedy == f"apt-get install g++-{package}-linux-gnu"


def test_cross_compiler_of_homebrew_is_known(bare: Path) -> None:
    path = _program(bare, "aarch64-unknown-linux-gnu-g++", "13.3.0")
    assert find_compiler(_ARM, _MAC) == path


def test_cxx_chooses_the_native_compiler_only(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _fill(bare)
    mine = _program(bare, "my-g++", "12.2.0")
    cross = _program(bare, "aarch64-linux-gnu-g++", "12.2.0")
    monkeypatch.setenv("CXX", "my-g++ -m64")
    assert find_compiler(_X86, _X86) == mine
    assert find_compiler(_ARM, _X86) == cross


def test_cxx_that_does_not_exist_is_told(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _fill(bare)
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(BuildError, match="'no-such-compiler'"):
        require(find_tools(_X86, _X86))


def test_probe_lists_every_tool_with_version_or_remedy(bare: Path) -> None:
    _fill(bare, cmake="cmake version 3.25.1")
    (bare / "ninja").unlink()
    probed = {tool.name: tool for tool in probe_tools(_X86, _X86)}
    assert set(probed) == {"cmake", "ninja", "C++ compiler", "ccache"}
    assert (probed["cmake"].path, probed["cmake"].version) == (None, "3.25.1")
    assert probed["ninja"].path is None
    assert probed["C++ compiler"].version == "12.2.0"
    assert all(tool.remedy and tool.needed_for for tool in probed.values())
    assert [t.name for t in probed.values() if not t.required] == ["ccache"]


def test_an_extra_is_installed_from_the_clone_where_there_is_one() -> None:
    clone = Path(__file__).parents[3]
    assert (clone / "pyproject.toml").is_file()
    assert pip_command("etdeploy[llm]").endswith(quoted(f"--editable={clone}[llm]"))
