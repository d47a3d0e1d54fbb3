"""The configure command, and the error that is shown of a failed build."""

from __future__ import annotations

from pathlib import Path

from etdeploy.core.resources import resource_folder
from etdeploy.runtime.compile import cmake_arguments, first_error
from etdeploy.runtime.plan_model import RuntimePlan
from etdeploy.runtime.tools import BuildTools
from etdeploy.runtime.wheel import WheelRuntime
from tests.support.runtime_values import make_method, make_plan, make_program, make_recipe

_PROGRAM = make_program(make_method(delegates=("XnnpackBackend",)))


def _arguments(plan: RuntimePlan, ccache: Path | None = None) -> tuple[str, ...]:
    wheel = WheelRuntime(
        root="/wheel",
        version="1.5.1",
        target=plan.build_target,
        sha256="0",
        origin="fetched",
        components=(),
    )
    tools = BuildTools(Path("/bin/cmake"), Path("/bin/ninja"), Path("/bin/g++"), ccache)
    return cmake_arguments(plan, wheel, tools, Path("/sources"), Path("/build"))


def test_native_configure_command() -> None:
    plan = make_plan(make_recipe(benchmark={"profile": False}), _PROGRAM)
    assert _arguments(plan) == (
        "/bin/cmake", "-G", "Ninja", "-S", "/sources", "-B", "/build",
        "-DCMAKE_BUILD_TYPE=Release",
        "-DETDEPLOY_COMPONENTS=runtime;threadpool;backend_xnnpack",
        "-DCMAKE_MAKE_PROGRAM=/bin/ninja",
        "-DCMAKE_CXX_COMPILER=/bin/g++",
        "-DCMAKE_PREFIX_PATH=/wheel",
    )  # fmt: skip


def test_cross_configure_command_names_the_toolchain_file() -> None:
    arguments = _arguments(make_plan(make_recipe(), _PROGRAM, "linux-aarch64"))
    toolchain = resource_folder("toolchains") / "linux-aarch64.cmake"
    assert f"-DCMAKE_TOOLCHAIN_FILE={toolchain}" in arguments
    assert toolchain.is_file()


def test_ccache_launches_the_compiler() -> None:
    arguments = _arguments(make_plan(make_recipe(), _PROGRAM), Path("/bin/ccache"))
    assert "-DCMAKE_CXX_COMPILER_LAUNCHER=/bin/ccache" in arguments


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
