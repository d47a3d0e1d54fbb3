"""The configure command, the error of a failed build, and operators' names in a runner's files."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from etdeploy.core.files.basic import resource_folder
from etdeploy.core.values import ReasonedChoice
from etdeploy.plan.model import RuntimePlan
from etdeploy.provider.checkout import Checkout
from etdeploy.provider.wheel import WheelRuntime
from etdeploy.runner.compile import (
    BUILD_FAILURES,
    find_names,
    first_error,
    nested_builds,
    source_definitions,
    wheel_definitions,
)
from etdeploy.runner.toolchains import BuildTools
from tests.support.runtime_values import make_method, make_plan, make_program, make_recipe

_PROGRAM = make_program(make_method(delegates=("XnnpackBackend",)))
_SOURCE = {"provider": "source"}


def _tools(ccache: Path | None = None) -> BuildTools:
    return BuildTools(Path("/bin/cmake"), Path("/bin/ninja"), Path("/bin/g++"), ccache)


def test_nested_builds_use_every_processor_and_the_compiler_cache() -> None:
    told = nested_builds(_tools(Path("/bin/ccache")), {})
    assert int(told.pop("CMAKE_BUILD_PARALLEL_LEVEL")) >= 1
    assert told == {
        "CMAKE_C_COMPILER_LAUNCHER": "/bin/ccache",
        "CMAKE_CXX_COMPILER_LAUNCHER": "/bin/ccache",
    }
    # Zig keeps what it compiled itself, and its builds must not get a launcher by the back door.
    assert list(nested_builds(_tools(), {})) == ["CMAKE_BUILD_PARALLEL_LEVEL"]


def _definitions(plan: RuntimePlan, ccache: Path | None = None) -> dict[str, str]:
    wheel = WheelRuntime(
        root="/wheel",
        version="1.5.1",
        target=plan.build_target,
        sha256="0",
        origin="fetched",
        components=(),
    )
    return wheel_definitions(plan, wheel, _tools(ccache))


def test_native_definitions() -> None:
    plan = make_plan(make_recipe(benchmark={"profile": False}), _PROGRAM)
    assert _definitions(plan) == {
        "CMAKE_BUILD_TYPE": "Release",
        "ETDEPLOY_COMPONENTS": "runtime;threadpool;backend_xnnpack",
        "CMAKE_MAKE_PROGRAM": "/bin/ninja",
        "CMAKE_CXX_COMPILER": "/bin/g++",
        "CMAKE_PREFIX_PATH": "/wheel",
    }


def test_cross_definitions_name_the_toolchain_file() -> None:
    definitions = _definitions(make_plan(make_recipe(), _PROGRAM, "linux-aarch64"))
    toolchain = resource_folder("toolchains") / "linux-aarch64.cmake"
    assert definitions["CMAKE_TOOLCHAIN_FILE"] == str(toolchain)
    assert toolchain.is_file()


def test_ccache_launches_both_compilers() -> None:
    definitions = _definitions(make_plan(make_recipe(), _PROGRAM), Path("/bin/ccache"))
    assert definitions["CMAKE_CXX_COMPILER_LAUNCHER"] == "/bin/ccache"
    assert definitions["CMAKE_C_COMPILER_LAUNCHER"] == "/bin/ccache"


def _from_source(plan: RuntimePlan, program: Path | None = None) -> dict[str, str]:
    checkout = Checkout(path="/src/executorch", version="1.5.1", revision="1", origin="recipe")
    toolchain = (
        ReasonedChoice(name="CMAKE_CXX_COMPILER", value="/ndk/clang++", reason="the NDK's"),
    )
    return source_definitions(plan, checkout, _tools(), toolchain, program)


def test_source_definitions_name_checkout_and_python() -> None:
    definitions = _from_source(make_plan(make_recipe(runtime=_SOURCE), _PROGRAM))
    assert definitions["ETDEPLOY_EXECUTORCH_SOURCE"] == "/src/executorch"
    assert definitions["PYTHON_EXECUTABLE"] == sys.executable
    assert definitions["EXECUTORCH_BUILD_XNNPACK"] == "ON"
    assert definitions["CMAKE_CXX_COMPILER"] == "/ndk/clang++"
    assert definitions["etdeploy_targets_backend_xnnpack"] == "xnnpack_backend"
    assert not any(name.endswith("backend_qnn") for name in definitions)
    assert "CMAKE_PREFIX_PATH" not in definitions


def test_selected_program_is_named_by_its_path() -> None:
    program = make_program(make_method(operators=("aten::relu.out",)))
    plan = make_plan(make_recipe(runtime=_SOURCE), program)
    assert plan.option("EXECUTORCH_SELECT_OPS_MODEL") == "program.pte"
    definitions = _from_source(plan, Path("/cache/selected.pte"))
    assert definitions["EXECUTORCH_SELECT_OPS_MODEL"] == "/cache/selected.pte"


@pytest.mark.parametrize(
    ("output", "shown"),
    [
        # The compiler's, before the linker's and ninja's own.
        (
            "FAILED: main.cpp.o\nmain.cpp:3:10: fatal error: a.h: No such file\n"
            "main.cpp:9:1: error: expected ';'\nninja: build stopped: subcommand failed.",
            "main.cpp:3:10: fatal error: a.h: No such file",
        ),
        (
            "/usr/bin/ld: main.cpp.o: in function `main':\n"
            "main.cpp:(.text+0x5): undefined reference to `executorch::init()'",
            "main.cpp:(.text+0x5): undefined reference to `executorch::init()'",
        ),
        # cmake's, with its indented text.
        (
            "-- CXX is GNU 12\nCMake Error at CMakeLists.txt:24 (message):\n"
            "  no component 'backend_vulkan'\n\n\n-- Configuring incomplete!",
            "CMake Error at CMakeLists.txt:24 (message): no component 'backend_vulkan'",
        ),
        ("one\ntwo\n", "two"),
        ("", "no output"),
    ],
)
def test_the_first_error_is_shown(output: str, shown: str) -> None:
    assert first_error(output.split("\n") if output else []) == shown


@pytest.mark.parametrize(
    ("line", "named", "remedy"),
    [
        ("error: downloading 'https://a/KleidiAI/x.zip' failed", "KleidiAI",
         "--set runtime.kleidiai=false\nOr unpack https://a/KleidiAI/x.zip"),
        ("error: downloading 'https://a/eigen.zip' failed", "https://a/eigen.zip", "network"),
        ("c++: fatal error: Killed signal terminated program cc1plus", "memory", "continues"),
        ("clang: error: unable to execute command: Killed", "memory", "continues"),
    ],
)  # fmt: skip
def test_a_known_failure_has_its_remedy(line: str, named: str, remedy: str) -> None:
    found = BUILD_FAILURES.diagnose(f"one\n  {line}\nkleidiai")
    assert found
    assert named in found.cause
    assert remedy in found.remedy


_MACH_O = b"\xcf\xfa\xed\xfe"


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"\0self::scaled.out\0", True),
        # A value of another kind stands before it; or a text that ends in the same bytes.
        (b"\x3f\x80self::scaled.out\0", True),
        (b"no memory in self::scaled.out\0", True),
        (b"\0self::scaled.out_more\0", False),
        (b"\0self::scaled.out is slow\0", False),
        (b"\0myself::scaled.out\0", False),
        (b"\0my::self::scaled.out\0", False),
        (b"\0self::scaledXout\0", False),
        (b"", False),
    ],
)
def test_a_name_is_a_whole_string(data: bytes, found: bool, tmp_path: Path) -> None:
    runner = tmp_path / "runner"
    runner.write_bytes(_MACH_O + b"\x07\0\0\1" + data)
    assert bool(find_names([runner], ["self::scaled.out"])) == found


def test_names_are_found_in_any_of_the_files(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).write_bytes(_MACH_O + f"\0my::{name}\0".encode())
    files = [tmp_path / "one", tmp_path / "two"]
    assert find_names(files, ["my::one", "my::two", "my::three"]) == {"my::one", "my::two"}
