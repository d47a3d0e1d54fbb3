"""Programs that zig builds for 64-bit Arm run with nothing of their own on the system."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from etdeploy.core.errors import require
from etdeploy.runner.toolchains import Machine, Toolchain, find_toolchain, find_tools
from etdeploy.targets.platforms import find_target, host_target

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(
        shutil.which("qemu-aarch64-static") is None, reason="qemu-aarch64-static is not installed"
    ),
]

_PROJECT = Path(__file__).parents[3] / "data" / "musl_project"
_SAYS = "increment 5\ncaught: more than ten\nthreads 4, assembly 5, clock 1\n"


@dataclass(frozen=True)
class Built:
    toolchain: Toolchain
    folder: Path

    @property
    def program(self) -> Path:
        return self.folder / "program"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The small project, with both ways of linking a library whole and through ccache if any.

    Its name has a space in it, as users' folders may. Zig compiles its C and C++ libraries for it,
    minutes of work, unless ZIG_GLOBAL_CACHE_DIR names a folder where it did so before.
    """
    pytest.importorskip("ziglang", reason="the extra `musl` is not installed")
    folder = tmp_path_factory.mktemp("with space")
    host = host_target()
    machine = Machine(host, os.environ, folder, folder / "zig")
    toolchain = find_toolchain(find_target("linux-aarch64-musl"), machine, 30, None)
    assert isinstance(toolchain, Toolchain)
    tools = require(find_tools(host, host))
    cmake, ccache = str(tools.cmake), tools.ccache
    configure = [
        cmake, "-G", "Ninja", "-S", str(_PROJECT), "-B", str(folder / "build"),
        "-DCMAKE_BUILD_TYPE=Release",
        f"-DCMAKE_MAKE_PROGRAM={tools.ninja}",
        *(f"-D{d.name}={d.value}" for d in toolchain.definitions),
        *((f"-DCMAKE_{x}_COMPILER_LAUNCHER={ccache}" for x in ("C", "CXX")) if ccache else ()),
    ]  # fmt: skip
    environ = {**os.environ, "CCACHE_DIR": str(folder / "ccache")}
    for argv in (configure, [cmake, "--build", str(folder / "build"), "-j1"]):
        outcome = subprocess.run(argv, env=environ, capture_output=True, text=True, check=False)
        assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    return Built(toolchain, folder / "build")


@pytest.mark.nightly
@pytest.mark.parametrize("cpu", ["cortex-a53", "cortex-a76", "max,sve=off"])
def test_it_runs_without_a_c_library(built: Built, cpu: str) -> None:
    argv = ["qemu-aarch64-static", "-L", "/nowhere", "-cpu", cpu, str(built.program)]
    assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout == _SAYS


@pytest.mark.nightly
def test_code_for_newer_processors_is_in_it(built: Built) -> None:
    argv = ["qemu-aarch64-static", "-cpu", "max", str(built.program), "half"]
    said = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    assert said == _SAYS + "half 3.5\n"


@pytest.mark.nightly
def test_it_is_static_stripped_and_fits_large_pages(built: Built) -> None:
    from elftools.elf.elffile import ELFFile

    with built.program.open("rb") as stream:
        elf = ELFFile(stream)
        segments = list(elf.iter_segments())
        assert elf.get_section_by_name(".symtab") is None
        assert elf.get_section_by_name(".debug_info") is None
    assert not [s for s in segments if s["p_type"] in ("PT_INTERP", "PT_DYNAMIC")]
    assert {s["p_align"] % 16384 for s in segments if s["p_type"] == "PT_LOAD"} == {0}


@pytest.mark.nightly
def test_zig_keeps_to_the_cache_that_it_was_given(built: Built) -> None:
    beside = built.toolchain.compiler.parents[1] / "cache"
    assert beside.is_dir() != ("ZIG_GLOBAL_CACHE_DIR" in os.environ)
    assert not (Path.home() / ".cache" / "zig").exists()


@pytest.mark.skipif(shutil.which("ccache") is None, reason="ccache is not installed")
@pytest.mark.nightly
def test_ccache_works_with_it(built: Built, tmp_path: Path) -> None:
    source = tmp_path / "source.cpp"
    source.write_text("int answer() { return 42; }\n")
    environ = {**os.environ, "CCACHE_DIR": str(tmp_path / "ccache")}
    argv = ["ccache", str(built.toolchain.compiler), "-O2", "-c", str(source), "-o", "source.o"]
    for _ in range(2):
        subprocess.run(argv, env=environ, cwd=tmp_path, check=True)
    said = subprocess.run(
        ["ccache", "--print-stats"], env=environ, capture_output=True, text=True, check=True
    ).stdout
    counts = dict(line.split("\t") for line in said.splitlines())
    assert counts["direct_cache_hit"] == "1"
