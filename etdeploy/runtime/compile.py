"""Runs cmake and ninja on the runner's sources."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from etdeploy.core import process
from etdeploy.core.errors import BuildError
from etdeploy.core.progress import Progress
from etdeploy.core.resources import resource_folder
from etdeploy.runtime.plan_model import RuntimePlan
from etdeploy.runtime.tools import BuildTools
from etdeploy.runtime.wheel import WheelRuntime

_NINJA_STEP = re.compile(r"\[(\d+)/(\d+)\] (.*)")
_ERROR = re.compile(
    r"error:|undefined reference|undefined symbol|cannot find -l|CMake Error|ld: (?!.*in function)"
)
_LINES_OF_CMAKE_ERROR = 8


def compile_runner(
    plan: RuntimePlan,
    wheel: WheelRuntime,
    tools: BuildTools,
    sources: Path,
    folder: Path,
    progress: Progress,
    log: Path | None,
) -> Path:
    """Configures and builds the runner in `folder`; returns the executable.

    Raises:
        BuildError: With the first error of cmake, the compiler or the linker.
    """
    progress("configuring the runner")
    _run(cmake_arguments(plan, wheel, tools, sources, folder), "configuring", log, progress)
    _run((str(tools.ninja), "-C", str(folder)), "compiling", log, progress)
    return folder / "etdeploy-runner"


def cmake_arguments(
    plan: RuntimePlan, wheel: WheelRuntime, tools: BuildTools, sources: Path, folder: Path
) -> tuple[str, ...]:
    """The command that configures: the plan's options and where things are on this machine."""
    here = {
        "CMAKE_MAKE_PROGRAM": tools.ninja,
        "CMAKE_CXX_COMPILER": tools.compiler,
        "CMAKE_PREFIX_PATH": wheel.root,
    }
    if plan.toolchain:
        here["CMAKE_TOOLCHAIN_FILE"] = resource_folder("toolchains") / str(plan.toolchain.value)
    if tools.ccache:
        here["CMAKE_CXX_COMPILER_LAUNCHER"] = tools.ccache
    definitions = {o.name: o.value for o in plan.options} | here
    return (
        str(tools.cmake), "-G", "Ninja", "-S", str(sources), "-B", str(folder),
        *(f"-D{name}={value}" for name, value in definitions.items()),
    )  # fmt: skip


def first_error(lines: Sequence[str]) -> str:
    """The first error that cmake, a compiler or a linker printed; else the last line."""
    for number, line in enumerate(lines):
        if _ERROR.search(line) and not _NINJA_STEP.match(line):
            if not line.startswith("CMake Error"):
                return line.strip()
            # The text of a cmake error is in the indented lines that follow.
            block = lines[number : number + _LINES_OF_CMAKE_ERROR]
            end = next((i for i, t in enumerate(block[1:], 1) if t and not t.startswith(" ")),
                       len(block))
            return " ".join(text.strip() for text in block[:end] if text.strip())
    return next((line.strip() for line in reversed(lines) if line.strip()), "no output")


def _run(argv: tuple[str, ...], doing: str, log: Path | None, progress: Progress) -> None:
    lines: list[str] = []

    def on_line(line: str) -> None:
        lines.append(line)
        step = _NINJA_STEP.match(line)
        if step:
            progress(f"{doing} the runner", int(step[1]) / int(step[2]))

    outcome = process.run(process.Request(argv, log=log, on_line=on_line))
    if not outcome.ok:
        raise BuildError(
            f"{doing} the runner failed: {first_error(lines)}",
            remedy="Check compiler and tools: etdeploy doctor",
            log=log,
        )
