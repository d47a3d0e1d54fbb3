"""Runs cmake and ninja on the runner's sources."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from etdeploy.core import process
from etdeploy.core.errors import BuildError
from etdeploy.core.progress import Progress
from etdeploy.core.resources import resource_folder
from etdeploy.runtime.checkout import Checkout
from etdeploy.runtime.plan_model import RuntimePlan
from etdeploy.runtime.tools import BuildTools
from etdeploy.runtime.wheel import WheelRuntime

EXECUTABLE = "etdeploy-runner"
_NINJA_STEP = re.compile(r"\[(\d+)/(\d+)\] (.*)")
_TOOL_ERROR = re.compile(
    r"error: |undefined reference|undefined symbol|cannot find -l|ld: (?!.*in function)"
)
_DISK_FULL = "No space left on device"


def configure(
    definitions: Mapping[str, object],
    tools: BuildTools,
    sources: Path,
    folder: Path,
    progress: Progress,
    log: Path | None,
    *,
    fresh: bool = False,
) -> None:
    """Runs cmake.

    Args:
        definitions: The cache variables.
        tools: cmake and ninja.
        sources: The project.
        folder: The build folder.
        progress: Told that it happens.
        log: Gets the command and its output.
        fresh: Forget what an earlier run was told; what is compiled stays.

    Raises:
        BuildError: With cmake's or the compiler's first error.
    """
    progress("configuring the runner")
    argv = (
        str(tools.cmake), *(("--fresh",) if fresh else ()),
        "-G", "Ninja", "-S", str(sources), "-B", str(folder),
        *(f"-D{name}={value}" for name, value in definitions.items()),
    )  # fmt: skip
    _run(argv, "configuring", log, progress)


def compile_runner(tools: BuildTools, folder: Path, progress: Progress, log: Path | None) -> Path:
    """Builds the runner, and nothing that it does not link; returns the executable.

    Raises:
        BuildError: With the first error of the compiler or the linker.
    """
    _run((str(tools.ninja), "-C", str(folder), EXECUTABLE), "compiling", log, progress)
    return folder / EXECUTABLE


def wheel_definitions(plan: RuntimePlan, wheel: WheelRuntime, tools: BuildTools) -> dict[str, str]:
    """The plan's options, and where things are on this machine."""
    return plan_definitions(plan) | _tools(tools) | {"CMAKE_PREFIX_PATH": wheel.root}


def source_definitions(
    plan: RuntimePlan, checkout: Checkout, tools: BuildTools, program: Path | None
) -> dict[str, str]:
    """The plan's options, and where things are on this machine.

    Args:
        plan: Of the provider `source`.
        checkout: As the build sees it: its folder is called `executorch`.
        tools: Of this machine.
        program: Whose operators are selected.
    """
    definitions = plan_definitions(plan) | _tools(tools)
    definitions["ETDEPLOY_EXECUTORCH_SOURCE"] = checkout.path
    # ExecuTorch generates code with torchgen, and reads programs with its own Python package.
    definitions.setdefault("PYTHON_EXECUTABLE", sys.executable)
    if "EXECUTORCH_SELECT_OPS_MODEL" in definitions and program:
        definitions["EXECUTORCH_SELECT_OPS_MODEL"] = str(program)
    return definitions


def plan_definitions(plan: RuntimePlan) -> dict[str, str]:
    """The plan's options with the file of its toolchain."""
    definitions = {option.name: option.value or "" for option in plan.options}
    if plan.toolchain:
        file = resource_folder("toolchains") / str(plan.toolchain.value)
        definitions["CMAKE_TOOLCHAIN_FILE"] = str(file)
    return definitions


def _tools(tools: BuildTools) -> dict[str, str]:
    here = {
        "CMAKE_MAKE_PROGRAM": str(tools.ninja),
        "CMAKE_CXX_COMPILER": str(tools.compiler),
    }
    if tools.ccache:
        here |= {f"CMAKE_{x}_COMPILER_LAUNCHER": str(tools.ccache) for x in ("C", "CXX")}
    return here


def first_error(lines: Sequence[str]) -> str:
    """The first error that a compiler, a linker or cmake printed; else the last line.

    What a compiler says comes before cmake's summary of it: a compiler that cannot compile cmake's
    own test program is shown with its reason.
    """
    said = (line.strip() for line in lines if _TOOL_ERROR.search(line))
    last = (line.strip() for line in reversed(lines) if line.strip())
    return next(said, None) or _cmake_error(lines) or next(last, "no output")


def _cmake_error(lines: Sequence[str]) -> str | None:
    """The first error of cmake in one line; its text is in the indented lines that follow."""
    start = next((i for i, line in enumerate(lines) if line.startswith("CMake Error")), None)
    if start is None:
        return None
    text = itertools.takewhile(lambda t: not t or t.startswith(" "), lines[start + 1 :])
    return " ".join(t.strip() for t in (lines[start], *text) if t.strip())


def _run(argv: tuple[str, ...], doing: str, log: Path | None, progress: Progress) -> None:
    lines: list[str] = []

    def on_line(line: str) -> None:
        lines.append(line)
        step = _NINJA_STEP.match(line)
        if step:
            progress(
                f"{doing} the runner, step {step[1]} of {step[2]}", int(step[1]) / int(step[2])
            )

    outcome = process.run(process.Request(argv, log=log, on_line=on_line))
    if not outcome.ok:
        full = any(_DISK_FULL in line for line in lines)
        raise BuildError(
            f"{doing} the runner failed: "
            + (f"the disk is full ({_DISK_FULL})" if full else first_error(lines)),
            remedy="Make room (etdeploy clean all), or name a folder on a larger disk; the build "
            "goes on from where it is:\nexport ETDEPLOY_CACHE_DIR=/path/on/a/larger/disk"
            if full
            else "Check compiler and tools: etdeploy doctor",
            log=log,
        )
