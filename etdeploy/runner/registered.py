"""Which operators and backends a runner has registered."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from etdeploy.backends.registry import known_backends, runtime_backends
from etdeploy.core.errors import BuildError
from etdeploy.core.processes import process
from etdeploy.plan.components import NAMESPACES

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
    """Starts the runner, which lists its operators and backends.

    Args:
        command: The runner, preceded by qemu or the C library's loader if needed.
        log: Receives the command and its output.

    Raises:
        BuildError: It does not start or prints no list.
    """
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
    by_component = {b.component: b.delegate_id for b in runtime_backends() if b.delegate_id}
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

    Args:
        executable: The runner, with ExecuTorch's static libraries in it.
        libraries: Shared libraries of the same build that it loads, such as the backends of
            Qualcomm and MediaTek.
    """
    data = [_read_only_data(path) for path in (executable, *libraries)]
    operators = {name.decode() for part in data for name in _OPERATOR.findall(part)}
    backends = {n for n in _delegate_ids() if any(n.encode() + b"\0" in part for part in data)}
    return Kernels(tuple(sorted(operators)), tuple(sorted(backends)), "libraries")


def _delegate_ids() -> list[str]:
    return [b.delegate_id for b in known_backends() if b.delegate_id]


def find_names(files: Iterable[Path], names: Iterable[str]) -> frozenset[str]:
    """The names that occur in the read-only data of the files.

    This is for kernels that register themselves, in a runner that cannot be started here: an
    operator's name is a string in the code that registers it.

    Args:
        files: The runner and its libraries.
        names: Of operators, in full.
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
