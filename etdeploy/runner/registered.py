"""Which operators and backends a runner has registered."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from etdeploy.core import process
from etdeploy.core.errors import BuildError
from etdeploy.plan.components import BACKEND_FACTS, NAMESPACES

# A name is a whole string. What stands before it may belong to another value, or to a longer text
# that the linker lets end in the same bytes.
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
    """Starts the runner and lets it list what it has.

    Args:
        command: The runner, with qemu or the C library's loader before it where needed.
        log: Gets the command and its output.

    Raises:
        BuildError: It does not start or gives no list.
    """
    outcome = process.run(process.Request((*command, "--list-kernels"), timeout_s=120, log=log))
    if not outcome.ok:
        lines = [line for line in outcome.stderr.splitlines() if line.strip()]
        reason = lines[-1] if lines else outcome.signal_name or f"exit code {outcome.exit_code}"
        raise BuildError(f"the runner was built and does not start: {reason}", log=log)
    listed = json.loads(outcome.stdout)
    return Kernels(tuple(listed["operators"]), tuple(listed["backends"]), "runner")


def read_libraries(libraries: list[Path]) -> Kernels:
    """Reads from ExecuTorch's libraries what they register when they are loaded.

    For a runner that cannot be started here. Operators are found by the form of their names in the
    read-only data, backends by the name of the library. Compared with what a runner itself lists
    for the wheels of ExecuTorch 1.5.1, this gives two names more, `embedding_xbit.out` and
    `.dtype_out` of quantized_decomposed, which no program has.
    """
    operators: set[str] = set()
    backends: set[str] = set()
    by_component = {facts.component: facts.delegate_id for facts in BACKEND_FACTS.values()}
    for path in libraries:
        component = path.stem.removeprefix("libexecutorch_")
        if component in by_component:
            backends.add(by_component[component])
        elif component == "libexecutorch" or component.startswith("kernels_"):
            operators |= {name.decode() for name in _OPERATOR.findall(_read_only_data(path))}
    return Kernels(tuple(sorted(operators)), tuple(sorted(backends)), "libraries")


def read_built(executable: Path, libraries: Iterable[Path] = ()) -> Kernels:
    """Reads from a runner that was built from source what it registers when it is started.

    The names of operators and backends stand in the read-only data of the file that has their
    code. A name is there only when what registers it was linked, as nothing else in ExecuTorch's
    runtime names them.

    Args:
        executable: The runner, with ExecuTorch's static libraries in it.
        libraries: Shared libraries of the same build that it loads: a backend can be one, as
            Qualcomm's and MediaTek's are.
    """
    data = [_read_only_data(path) for path in (executable, *libraries)]
    operators = {name.decode() for part in data for name in _OPERATOR.findall(part)}
    backends = {n for n in BACKEND_FACTS if any(n.encode() + b"\0" in part for part in data)}
    return Kernels(tuple(sorted(operators)), tuple(sorted(backends)), "libraries")


def find_names(files: Iterable[Path], names: Iterable[str]) -> frozenset[str]:
    """Those of the names that stand in the read-only data of the files.

    For kernels that register themselves, in a runner that cannot be started here: the name of an
    operator is a string of the code that registers it.

    Args:
        files: The runner and its libraries.
        names: Of operators, in full.
    """
    patterns = {name: re.compile(_START + re.escape(name.encode()) + _END) for name in names}
    data = [_read_only_data(path) for path in files if patterns]
    return frozenset(n for n, pattern in patterns.items() if any(map(pattern.search, data)))


def _read_only_data(path: Path) -> bytes:
    """Of an ELF file; the whole of another one, such as those of Apple's systems."""
    from elftools.elf.elffile import ELFFile

    with path.open("rb") as stream:
        if stream.read(4) != b"\x7fELF":
            return path.read_bytes()
        section = ELFFile(stream).get_section_by_name(".rodata")
        return bytes(section.data()) if section else b""
