"""qemu's user mode on this machine: the program, its version and the emulated processor."""

from __future__ import annotations

import os
import re
from functools import lru_cache
from pathlib import Path

from etdeploy.core.hashing import stamp
from etdeploy.core.processes import process

CPU_VARIABLE = "QEMU_CPU"
"""qemu's own variable: a processor and its features, for instance `cortex-a76` or `max,sve=off`."""


def find_emulator(arch: str) -> Path | None:
    """The emulator for programs of an architecture; the static one if both are installed."""
    names = (f"qemu-{arch}-static", f"qemu-{arch}")
    return next((found for name in names if (found := process.which(name))), None)


def chosen_cpu() -> str | None:
    """The processor that the user chose; None leaves it to qemu or to us."""
    return os.environ.get(CPU_VARIABLE) or None


def emulator_version(program: Path) -> str | None:
    """The version that the emulator reports; None if it reports none."""
    return _version(program, stamp(program))


@lru_cache(maxsize=8)
def _version(program: Path, stamp: tuple[int, ...]) -> str | None:  # noqa: ARG001 - part of the key
    try:
        outcome = process.run(process.Request((str(program), "--version"), timeout_s=20))
    except OSError:
        return None
    found = re.search(r"version (\S+)", outcome.stdout)
    return found[1] if found else None


def emulator_identity(arch: str) -> tuple[str, ...] | None:
    """Changes with the emulator and the emulated processor; no process is started."""
    program = find_emulator(arch)
    if program is None:
        return None
    return str(program), *map(str, stamp(program)), chosen_cpu() or ""
