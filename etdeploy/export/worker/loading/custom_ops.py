"""Operators of the user: registered with PyTorch before the model is loaded."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import torch

from etdeploy.export.worker.failures import exception_text, fail
from etdeploy.export.worker.loading.user_code import run_file

_UNDEFINED = re.compile(r"undefined symbol: (\S+)|Symbol not found: (\S+)")


def load_custom_ops(path: Path) -> None:
    """Runs the Python file, or loads the shared library, that registers operators."""
    if path.suffix == ".py":
        run_file(path, "custom-ops")
        return
    try:
        torch.ops.load_library(str(path))
    except (OSError, RuntimeError) as error:
        version = str(torch.__version__).partition("+")[0]
        # torch says only that loading failed; the loader's message is the cause.
        cause = error.__cause__ or error
        missing = _UNDEFINED.search(str(cause))
        why = (
            f"it refers to {missing[1] or missing[2]}, which neither it nor PyTorch {version} has; "
            "the usual cause is that it was built for another PyTorch"
            if missing
            else exception_text(cause)
        )
        raise fail(
            "custom-ops",
            f"the library of custom operators cannot be loaded: {why}",
            remedy=f"Build it with the headers and the libraries of PyTorch {version}, for "
            "this machine.",
            file=str(path),
        ) from error


def without_out_variant(operator: str) -> tuple[str, str]:
    """Why ExecuTorch cannot call a registered operator, and what to do."""
    namespace, name = operator.split("::", 1)
    packet = getattr(getattr(torch.ops, namespace), name)
    overloads = packet.overloads()
    schema = getattr(packet, overloads[0])._schema
    line = _definition(operator, schema)
    if "out" in overloads:
        why = (
            f"has the variant {packet.out._schema}, whose arguments are not those of {schema} and "
            "an output argument after them, which ExecuTorch calls"
        )
        return why, f"Register it so:\n{line}" if line else f"Change {operator}.out."
    why = "has no variant with an output argument (.out), which ExecuTorch calls"
    if line is None:
        return why, "Replace the operator with one that returns only tensors."
    return why, (
        f"Register it beside {operator}, with an implementation that writes to its output:\n"
        f"{line}\nIts C++ kernel goes into the folder that runtime.custom_ops names."
    )


def _definition(operator: str, schema: torch.FunctionSchema) -> str | None:
    """The line that registers the variant with output arguments; None without tensors to write."""
    if not schema.returns or {str(r.type) for r in schema.returns} != {"Tensor"}:
        return None
    arguments = str(schema).partition("(")[2].rpartition(") -> ")[0]
    star = () if any(a.kwarg_only for a in schema.arguments) else ("*",)
    outs = list(_outs(len(schema.returns)))
    parts = (*([arguments] if arguments else []), *star, *(f"{t} {name}" for t, name in outs))
    types = ", ".join(t for t, _ in outs)
    returns = types if len(outs) == 1 else f"({types})"
    return f'torch.library.define("{operator}.out", "({", ".join(parts)}) -> {returns}")'


def _outs(count: int) -> Iterator[tuple[str, str]]:
    for index in range(count):
        yield f"Tensor({chr(ord('a') + index)}!)", "out" if count == 1 else f"out{index}"
