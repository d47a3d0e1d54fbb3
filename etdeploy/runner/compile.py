"""Runs cmake and ninja on the runner's sources."""

from __future__ import annotations

import itertools
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from etdeploy.backends.registry import known_entries
from etdeploy.core.diagnostics import Diagnosis, FailurePattern, FailureTable
from etdeploy.core.errors import BuildError
from etdeploy.core.files.basic import disk_full_error, find_disk_full_in_output, resource_folder
from etdeploy.core.processes import process
from etdeploy.core.values import Progress, ReasonedChoice
from etdeploy.plan.components import NAMESPACES, linked_backends
from etdeploy.plan.model import RuntimePlan
from etdeploy.provider.checkout import Checkout
from etdeploy.provider.wheel import WheelRuntime
from etdeploy.runner.kernel_sources import kleidiai_remedy
from etdeploy.runner.toolchains import BuildTools

EXECUTABLE = "etdeploy-runner"


class ToolError(BuildError):
    """cmake or ninja failed; `lines` is what they printed."""

    def __init__(self, message: str, remedy: str, log: Path | None, lines: list[str]) -> None:
        super().__init__(message, remedy=remedy, log=log)
        self.lines = lines


BUILD_FAILURES = FailureTable(
    "Building the runner",
    BuildError.exit_code,
    (
        FailurePattern(
            r"(?i)downloading '(?P<url>\S*kleidiai\S*)' failed",
            "cmake cannot download KleidiAI",
            kleidiai_remedy("{url}"),
        ),
        FailurePattern(
            r"downloading '(?P<url>\S+)' failed",
            "cmake cannot download {url}",
            "Check the network, and run the same command again: it continues from there.",
        ),
        FailurePattern(
            r"Killed signal terminated program|(?:compiler error|execute command): Killed|"
            r"virtual memory exhausted",
            "this machine has too little memory for the compiler",
            "Close other programs, and run the same command again: it continues from there.",
        ),
    ),
)
_CHECK_TOOLS = Diagnosis("", "Check the compiler and tools: etdeploy doctor")
_NINJA_STEP = re.compile(r"\[(\d+)/(\d+)\] (.*)")
_TOOL_ERROR = re.compile(
    r"error: |undefined reference|undefined symbol|cannot find -l|ld: (?!.*in function)"
)


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
    """Configure a project of cmake; a BuildError has cmake's or the compiler's first error.

    `fresh` discards the definitions of an earlier run; compiled files stay.
    """
    progress("configuring the runner")
    argv = (
        str(tools.cmake), "-G", "Ninja", "-S", str(sources), "-B", str(folder),
        *(f"-D{name}={value}" for name, value in definitions.items()),
    )  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    if fresh:
        # cmake's own --fresh also removes the project's compiled files.
        (folder / "CMakeCache.txt").unlink(missing_ok=True)
    _run(argv, folder, "configuring", log, progress)


def compile_runner(
    tools: BuildTools,
    folder: Path,
    progress: Progress,
    log: Path | None,
    built: str = EXECUTABLE,
) -> Path:
    """Build the runner, or another file of the build folder, and only what it links.

    A BuildError has the first error of the compiler or the linker.
    """
    argv = (str(tools.ninja), built)
    _run(argv, folder, "compiling", log, progress, nested_builds(tools, os.environ))
    return folder / built


def nested_builds(tools: BuildTools, environ: Mapping[str, str]) -> dict[str, str]:
    """Environment of the nested builds: ExecuTorch builds flatc and flatcc with make.

    They know neither ninja's jobs nor the compiler cache of the outer cmake.
    """
    settings = {"CMAKE_BUILD_PARALLEL_LEVEL": str(_usable_cpus())}
    if tools.ccache:
        settings |= {f"CMAKE_{x}_COMPILER_LAUNCHER": str(tools.ccache) for x in ("C", "CXX")}
    return {name: value for name, value in settings.items() if not environ.get(name)}


def _usable_cpus() -> int:
    """How many CPUs this process may use; macOS reports only how many there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def wheel_definitions(plan: RuntimePlan, wheel: WheelRuntime, tools: BuildTools) -> dict[str, str]:
    """The plan's options, and the paths on this machine."""
    definitions = plan_definitions(plan)
    if plan.toolchain:
        file = resource_folder("toolchains") / str(plan.toolchain.value)
        definitions["CMAKE_TOOLCHAIN_FILE"] = str(file)
    definitions["CMAKE_CXX_COMPILER"] = str(tools.compiler)
    return definitions | _tools(tools) | {"CMAKE_PREFIX_PATH": wheel.root}


def source_definitions(
    plan: RuntimePlan,
    checkout: Checkout,
    tools: BuildTools,
    toolchain: Iterable[ReasonedChoice],
    program: Path | None,
) -> dict[str, str]:
    """The plan's options, and the paths on this machine."""
    definitions = {d.name: d.value or "" for d in toolchain}
    # What the recipe sets overrides the machine's definitions.
    definitions |= _tools(tools) | plan_definitions(plan)
    definitions |= backend_targets(plan)
    definitions["ETDEPLOY_EXECUTORCH_SOURCE"] = checkout.path
    # ExecuTorch generates code with torchgen, and reads programs with its own Python package.
    definitions.setdefault("PYTHON_EXECUTABLE", sys.executable)
    if "EXECUTORCH_SELECT_OPS_MODEL" in definitions and program:
        definitions["EXECUTORCH_SELECT_OPS_MODEL"] = str(program)
    return definitions


def backend_targets(plan: RuntimePlan) -> dict[str, str]:
    """The library of each backend that is linked, for components.cmake."""
    linked = ((b.component, b.cmake_target) for b in linked_backends(plan))
    return {f"etdeploy_targets_{name}": library for name, library in linked if library}


def plan_definitions(plan: RuntimePlan) -> dict[str, str]:
    """The plan's options as cmake takes them."""
    return {option.name: option.value or "" for option in plan.options}


def _tools(tools: BuildTools) -> dict[str, str]:
    here = {"CMAKE_MAKE_PROGRAM": str(tools.ninja)}
    if tools.ccache:
        here |= {f"CMAKE_{x}_COMPILER_LAUNCHER": str(tools.ccache) for x in ("C", "CXX")}
    return here


def first_error(lines: Sequence[str]) -> str:
    """The first error that a compiler, a linker or cmake printed; otherwise the last line."""
    # The compiler's error comes before cmake's summary of it, which omits the reason when cmake's
    # own test program does not compile.
    errors = (line.strip() for line in lines if _TOOL_ERROR.search(line))
    last = (line.strip() for line in reversed(lines) if line.strip())
    return next(errors, None) or _cmake_error(lines) or next(last, "no output")


def _cmake_error(lines: Sequence[str]) -> str | None:
    """The first error of cmake, on one line; its text is in the indented lines that follow."""
    start = next((i for i, line in enumerate(lines) if line.startswith("CMake Error")), None)
    if start is None:
        return None
    text = itertools.takewhile(lambda t: not t or t.startswith(" "), lines[start + 1 :])
    return " ".join(t.strip() for t in (lines[start], *text) if t.strip())


def _run(
    argv: tuple[str, ...],
    folder: Path,
    doing: str,
    log: Path | None,
    progress: Progress,
    env: Mapping[str, str] | None = None,
) -> None:
    """Runs a command in the build folder, and raises ToolError if it fails."""
    # A Python that cmake starts imports from its working directory: next to a checkout, that would
    # be the checkout instead of the installed package.
    lines: list[str] = []

    def on_line(line: str) -> None:
        lines.append(line)
        step = _NINJA_STEP.match(line)
        if step:
            progress(
                f"{doing} the runner, step {step[1]} of {step[2]}", int(step[1]) / int(step[2])
            )

    request = process.Request(argv, cwd=folder, env=env or {}, log=log, on_line=on_line)
    outcome = process.run(request)
    if not outcome.ok:
        # Compilers write temporary files, too.
        full = find_disk_full_in_output("\n".join(lines), folder, Path(tempfile.gettempdir()))
        if full:
            raise disk_full_error(full, folder, log, f"{doing} the runner")
        found = BUILD_FAILURES.diagnose("\n".join(lines)) or _CHECK_TOOLS
        cause = f"{found.cause}\n" if found.cause else ""
        message = f"{doing} the runner failed: {cause}{first_error(lines)}"
        raise ToolError(message, found.remedy, log, lines)


# A name is a whole string. The bytes before it may belong to another value, or to a longer string
# that the linker merged because it ends in the same bytes.
_START, _END = rb"(?<![\w:])", rb"\0"
_OPERATOR = re.compile(
    _START + rb"((?:" + "|".join(NAMESPACES).encode() + rb")::\w+(?:\.\w+)?)" + _END
)


@dataclass(frozen=True)
class Kernels:
    """Operators by full name and backends by id, both sorted."""

    operators: tuple[str, ...]
    backends: tuple[str, ...]
    listed_by: Literal["runner", "libraries"]


def ask_runner(command: tuple[str, ...], log: Path | None) -> Kernels:
    """Starts the runner, which lists its operators and backends."""
    outcome = process.run(process.Request((*command, "--list-kernels"), timeout_s=120, log=log))
    if not outcome.ok:
        lines = [line for line in outcome.stderr.splitlines() if line.strip()]
        reason = lines[-1] if lines else outcome.signal_name or f"exit code {outcome.exit_code}"
        raise BuildError(f"the runner was built but does not start: {reason}", log=log)
    listed = json.loads(outcome.stdout)
    return Kernels(tuple(listed["operators"]), tuple(listed["backends"]), "runner")


def read_libraries(libraries: list[Path]) -> Kernels:
    """Reads from ExecuTorch's libraries what they register when they are loaded.

    This is for a runner that cannot be started here. Operators are found by the form of their names
    in the read-only data, backends by the names of the libraries. For the wheels of ExecuTorch
    1.5.1, this gives two more names than the runner itself lists, `embedding_xbit.out` and
    `.dtype_out` of quantized_decomposed, which no program has.
    """
    operators: set[str] = set()
    backends: set[str] = set()
    by_component = {e.component: e.delegate_id for e in known_entries().values() if e.delegate_id}
    for path in libraries:
        component = path.stem.removeprefix("libexecutorch_")
        if component in by_component:
            backends.add(by_component[component])
        elif component == "libexecutorch" or component.startswith("kernels_"):
            operators |= {name.decode() for name in _OPERATOR.findall(_read_only_data(path))}
    return Kernels(tuple(sorted(operators)), tuple(sorted(backends)), "libraries")


def read_built(executable: Path, libraries: Iterable[Path] = ()) -> Kernels:
    """Reads from a runner that was built from source what it registers when it starts.

    The names of operators and backends are in the read-only data of the file that has their code.
    A name is there only if the code that registers it was linked, as nothing else in ExecuTorch's
    runtime names them.
    """
    data = [_read_only_data(path) for path in (executable, *libraries)]
    operators = {name.decode() for part in data for name in _OPERATOR.findall(part)}
    ids = [entry.delegate_id for entry in known_entries().values() if entry.delegate_id]
    backends = {n for n in ids if any(n.encode() + b"\0" in part for part in data)}
    return Kernels(tuple(sorted(operators)), tuple(sorted(backends)), "libraries")


def find_names(files: Iterable[Path], names: Iterable[str]) -> frozenset[str]:
    """The names that occur in the read-only data of the files.

    This is for kernels that register themselves, in a runner that cannot be started here: an
    operator's name is a string in the code that registers it.
    """
    patterns = {name: re.compile(_START + re.escape(name.encode()) + _END) for name in names}
    data = [_read_only_data(path) for path in files if patterns]
    return frozenset(n for n, pattern in patterns.items() if any(map(pattern.search, data)))


def _read_only_data(path: Path) -> bytes:
    """The read-only data of an ELF file; all of another file, such as those of Apple's systems."""
    from elftools.elf.elffile import ELFFile

    with path.open("rb") as stream:
        if stream.read(4) != b"\x7fELF":
            return path.read_bytes()
        section = ELFFile(stream).get_section_by_name(".rodata")
        return bytes(section.data()) if section else b""
