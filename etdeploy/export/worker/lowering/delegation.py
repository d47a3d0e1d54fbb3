"""How much of the model the backend accepted, what it left to the CPU, and what that moves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from etdeploy.core.console import count, size
from etdeploy.export.worker.backends.base import REASON
from etdeploy.export.worker.tracing.trace import schema_name, stack_line

# Takes one result of an operator with several; nothing is computed.
_NO_OPERATORS = ("getitem",)
_NAMED = 5


def delegation(edge: Any, method: str) -> dict[str, Any]:
    """Nodes of a method inside and outside the delegates, in total and by operator.

    Counted by ExecuTorch's own `get_delegation_info`, whose names for operators are kept:
    `aten_linear_default`.
    """
    from executorch.devtools.backend_debug import get_delegation_info

    program = edge.exported_program(method)
    info = get_delegation_info(program.graph_module)
    operators = {
        name: {"delegated": count.delegated, "undelegated": count.non_delegated}
        for name, count in sorted(info.delegation_by_operator.items())
        if name not in _NO_OPERATORS
    }
    return {
        "partitions": info.num_delegated_subgraphs,
        "delegated_nodes": sum(o["delegated"] for o in operators.values()),
        "undelegated_nodes": sum(o["undelegated"] for o in operators.values()),
        "operators": operators,
        "outside": _outside(program.graph),
        "crossing": _crossing(program),
    }


def _outside(graph: torch.fx.Graph) -> list[dict[str, Any]]:
    """The operators that no delegate runs; those of one line and one reason together."""
    found: dict[tuple[str, str | None, int | None, str | None], list[str]] = {}
    for node in graph.nodes:
        operator = schema_name(node.target) if node.op == "call_function" else None
        if operator:
            file, line, _ = stack_line(node.meta.get("stack_trace"))
            key = operator, file, line, node.meta.get(REASON)
            found.setdefault(key, []).append(_module(node))
    return [
        {
            "operator": operator, "calls": len(modules), "file": file, "line": line,
            "reason": reason, "modules": list(dict.fromkeys(filter(None, modules))),
        }
        for (operator, file, line, reason), modules in found.items()
    ]  # fmt: skip


def _module(node: torch.fx.Node) -> str:
    """The path of the innermost module whose code called an operator; empty if not known."""
    stack = node.meta.get("nn_module_stack") or {}
    return next((str(path) for path, _ in reversed(stack.values())), "")


def _crossing(program: torch.export.ExportedProgram) -> dict[str, int]:
    values = set(_crossing_values(program))
    tensors = [node.meta.get("val") for node in values]
    sizes = [_size_bytes(tensor) for tensor in tensors if isinstance(tensor, torch.Tensor)]
    return {"tensors": len(sizes), "bytes": sum(sizes)}


def _crossing_values(program: torch.export.ExportedProgram) -> Iterator[torch.fx.Node]:
    from executorch.exir.delegate import executorch_call_delegate

    signature = program.graph_signature
    # The model's state is not an input or output of the user, and goes both ways.
    written = signature.buffers_to_mutate
    states = {n for n, b in signature.inputs_to_buffers.items() if b in written.values()}
    for call in program.graph.nodes:
        if call.target is executorch_call_delegate:
            taken = call.all_input_nodes
            yield from (n for n in taken if n.op == "call_function" or n.name in states)
            for given in call.users:  # each takes one of the delegate's outputs
                if given.name in written or any(user.op != "output" for user in given.users):
                    yield given


def _size_bytes(tensor: torch.Tensor) -> int:
    """Bytes of a tensor; at the size of the example where a dimension is dynamic."""
    elements = tensor.numel()
    known = elements if isinstance(elements, int) else elements.node.hint
    return int(known or 0) * int(tensor.element_size())


def delegation_notes(
    backend: str | None, counts: dict[str, Any], apart: bool, what: str = "the model"
) -> Iterator[str]:
    """Sentences about what the backend left to the CPU."""
    outside = counts["outside"]
    if backend == "portable":
        return
    if counts["undelegated_nodes"] and not counts["delegated_nodes"]:
        yield (
            f"The backend {backend} took none of {what}: every operator runs on portable kernels."
        )
        if any(each["reason"] for each in outside):
            yield f"Why {backend} took none: {_listed(outside)}."
    elif apart:
        if calls := sum(each["calls"] for each in outside):
            verb = "runs" if calls == 1 else "run"
            yield (
                f"{count(calls, 'operator')} of {what} {verb} on the CPU's kernels and not on "
                f"{backend}: {_listed(outside)}."
            )
        yield from _crossing_note(str(backend), counts, what)


def _listed(outside: list[dict[str, Any]]) -> str:
    """`aten::sum (model.py:7), aten::div (model.py:9): no such operator`, grouped by reason."""
    groups: dict[str | None, list[str]] = {}
    for each in outside[:_NAMED]:
        groups.setdefault(each["reason"], []).append(_described(each))
    shown = "; ".join(
        ", ".join(names) + (f": {reason}" if reason else "") for reason, names in groups.items()
    )
    more = len(outside) - _NAMED
    return f"{shown}; and {more} more, in export.json" if more > 0 else shown


def _described(each: dict[str, Any]) -> str:
    calls = f"{each['calls']} x " if each["calls"] > 1 else ""
    # The name alone: a note goes wherever a record goes.
    place = f" ({Path(each['file']).name}:{each['line']})" if each["file"] else ""
    return f"{calls}{each['operator']}{place}"


def _crossing_note(backend: str, counts: dict[str, Any], what: str) -> Iterator[str]:
    crossing, partitions = counts["crossing"], counts["partitions"]
    if not crossing["tensors"]:
        return
    tensors = f"{count(crossing['tensors'], 'tensor')} ({size(crossing['bytes'])})"
    verb = "passes" if crossing["tensors"] == 1 else "pass"
    moved = f"{tensors} {verb} between {backend} and the CPU at each inference"
    if partitions > 1:
        whole = f"{what[0].upper()}{what[1:]}"
        yield f"{whole} is split into {count(partitions, 'partition')}, and {moved}."
    else:
        yield f"{moved}." if what == "the model" else f"In {what}, {moved}."
