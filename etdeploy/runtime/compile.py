"""Runs cmake and ninja on the runner's sources."""

from __future__ import annotations

import itertools
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
_TOOL_ERROR = re.compile(
    r"error: |undefined reference|undefined symbol|cannot find -l|ld: (?!.*in function)"
)


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
            progress(f"{doing} the runner", int(step[1]) / int(step[2]))

    outcome = process.run(process.Request(argv, log=log, on_line=on_line))
    if not outcome.ok:
        raise BuildError(
            f"{doing} the runner failed: {first_error(lines)}",
            remedy="Check compiler and tools: etdeploy doctor",
            log=log,
        )
