"""The configure command, and the error that is shown of a failed build."""

from __future__ import annotations

import sys
from pathlib import Path

from etdeploy.core.resources import resource_folder
from etdeploy.core.values import Explained
from etdeploy.plan.model import RuntimePlan
from etdeploy.provider.checkout import Checkout
from etdeploy.provider.wheel import WheelRuntime
from etdeploy.runner.compile import (
    first_error,
    nested_builds,
    source_definitions,
    wheel_definitions,
)
from etdeploy.runner.tools.programs import BuildTools
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


def test_what_the_user_says_of_nested_builds_stays() -> None:
    own = {"CMAKE_BUILD_PARALLEL_LEVEL": "1", "CMAKE_C_COMPILER_LAUNCHER": "sccache"}
    assert list(nested_builds(_tools(Path("/bin/ccache")), own)) == ["CMAKE_CXX_COMPILER_LAUNCHER"]


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
    toolchain = (Explained(name="CMAKE_CXX_COMPILER", value="/ndk/clang++", reason="the NDK's"),)
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


def test_python_by_hand_is_kept() -> None:
    recipe = make_recipe(runtime={**_SOURCE, "cmake": {"PYTHON_EXECUTABLE": "/opt/python"}})
    definitions = _from_source(make_plan(recipe, _PROGRAM))
    assert definitions["PYTHON_EXECUTABLE"] == "/opt/python"


def test_first_compiler_error_is_shown_not_the_last_line() -> None:
    lines = [
        "[1/2] Building CXX object main.cpp.o",
        "FAILED: main.cpp.o",
        "main.cpp:3:10: fatal error: executorch/module.h: No such file or directory",
        "main.cpp:9:1: error: expected ';'",
        "compilation terminated.",
        "ninja: build stopped: subcommand failed.",
    ]
    assert first_error(lines) == (
        "main.cpp:3:10: fatal error: executorch/module.h: No such file or directory"
    )


def test_linker_error_is_shown() -> None:
    lines = [
        "FAILED: etdeploy-runner",
        "/usr/bin/ld: main.cpp.o: in function `main':",
        "main.cpp:(.text+0x5): undefined reference to `executorch::runtime::runtime_init()'",
    ]
    assert "undefined reference to `executorch::runtime::runtime_init()'" in first_error(lines)


def test_cmake_error_is_shown_with_its_text() -> None:
    lines = [
        "-- The CXX compiler identification is GNU 12.2.0",
        "CMake Error at CMakeLists.txt:24 (message):",
        "  this ExecuTorch package has no component 'backend_vulkan'",
        "",
        "",
        "-- Configuring incomplete, errors occurred!",
    ]
    assert first_error(lines) == (
        "CMake Error at CMakeLists.txt:24 (message): "
        "this ExecuTorch package has no component 'backend_vulkan'"
    )


def test_failure_without_an_error_line_shows_the_last() -> None:
    assert first_error(["one", "two", ""]) == "two"
    assert first_error([]) == "no output"
