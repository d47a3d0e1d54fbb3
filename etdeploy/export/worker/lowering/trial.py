"""Whether a program loads: what a backend has lowered, it may still refuse when it starts."""

from __future__ import annotations

from pathlib import Path

from etdeploy.export.spec import ExportSpec
from etdeploy.export.worker.backends.base import lowering_of
from etdeploy.export.worker.known_errors import load_refusal


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
        return load_refusal(str(error))
    return None
