"""Whether a program loads: what a backend has lowered, it may still refuse when it starts."""

from __future__ import annotations

import re
from pathlib import Path

from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.backends.base import lowering_of

# Of runtime/core/error.h: the program itself is wrong. Others, such as an operator or memory that
# is not there, are about this machine.
_OF_THE_PROGRAM = {
    0x1: "internal error",
    0x10: "not supported",
    0x11: "not implemented",
    0x12: "invalid argument",
    0x13: "invalid type",
    0x23: "invalid program",
    0x30: "the delegate does not take it",
}


def failed_to_load(spec: ExportSpec, program: Path) -> str | None:
    """Loads every method with ExecuTorch's Python package, as a runner would.

    Returns:
        Why the program cannot be loaded anywhere, as a clause; None if it loads, or if it cannot be
        tried here.
    """
    if not lowering_of(spec).loads_here or spec.custom_ops:
        return None
    try:
        from executorch.runtime import Runtime, Verification
    except ImportError:
        return None
    runtime = Runtime.get()
    try:
        names = runtime.load_program(program, verification=Verification.Minimal).method_names
        for name in sorted(names):
            # One at a time: a program keeps its methods, each with its packed weights.
            runtime.load_program(program, verification=Verification.Minimal).load_method(name)
    except RuntimeError as error:
        return reason_of(str(error))
    return None


def reason_of(text: str) -> str | None:
    """What the runtime said as a clause, if it is about the program."""
    # Written as `error: 0x:1` and as `error 0x12`.
    found = re.search(r"error:? 0x:?([0-9a-f]+)", text)
    known = _OF_THE_PROGRAM.get(int(found[1], 16)) if found else None
    return f"{known} ({text.strip()})" if known else None
